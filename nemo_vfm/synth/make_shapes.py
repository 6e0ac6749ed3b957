"""Generates a folder of videos of moving objects with captions, or checks the user's own folder.

The videos give every stage of curation something to do: hard cuts, a fade, a static shot, a byte-identical copy, a
re-encoded copy and a damaged file.
"""

import json
import shutil
from dataclasses import asdict
from fractions import Fraction
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nemo_vfm.core import log
from nemo_vfm.core.bounds import MAX_FPS, MAX_SIDE_PX, require_between
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.storage import files
from nemo_vfm.core.storage.folder_walk import files_below, is_taken
from nemo_vfm.core.storage.uri import Address, Place, place
from nemo_vfm.core.types.job import Outcome, Run, makes
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.core.types.media_types import VIDEO_SUFFIXES
from nemo_vfm.data.video.encode import encode_mp4
from nemo_vfm.synth import shot_plan
from nemo_vfm.synth.shot_plan import Shot, draw

_MAX_FILES, _LARGEST_CRF = 1_000_000, 51
_NUM_SPECIAL_FILES = 3  # the copy, the re-encoded copy, the damaged one
_MARKER = "videos.json"


@makes("film-*", "videos.json")
class MakeVideos:
    """Draw a dozen small films, or check the folder of the user's own.

    Args:
        input: a folder of videos to use instead, here or in an object store; None draws the films.
        num_files: how many files to write; three of them are a copy, a re-encoded copy and a damaged file.
        shots_per_film: shots in each film.
        side_px: width and height of the films.
        fps: their frame rate.
        crf: x264's quality, 0 (best) to 51.
    """

    def __init__(
        self, *, input: Place | None = None, num_files: int = 12, shots_per_film: int = 22, side_px: int = 192,
        fps: int = 12, crf: int = 18,
    ) -> None:  # fmt: skip
        require_between(1, _MAX_FILES, num_files=num_files, shots_per_film=shots_per_film)
        require_between(1, MAX_SIDE_PX, side_px=side_px)
        require_between(1, MAX_FPS, fps=fps)
        require_between(0, _LARGEST_CRF, crf=crf)
        if num_files <= _NUM_SPECIAL_FILES:
            raise ValueError(f"num_files must be at least {_NUM_SPECIAL_FILES + 1}, got {num_files}")
        if side_px < 64 or side_px % 2:
            raise ValueError(f"side_px must be even and at least 64, got {side_px}")
        self.input = None if input is None else place(input)
        self.num_files, self.shots_per_film, self.side_px = num_files, shots_per_film, side_px
        self.fps, self.crf = fps, crf

    def run(self, run: Run) -> Outcome:
        """Write what is missing; `videos.json` is written last and says what there is."""
        if self.input is not None:
            if isinstance(self.input, Address):  # whoever reads it lists it, and says what is missing
                files.write_json(run.folder / _MARKER, {"folder": self.input, "drawn": None})
                return Outcome(f"your own videos in {self.input} will be used")
            videos = videos_in(self.input)
            files.write_json(run.folder / _MARKER, {"folder": str(self.input.resolve()), "drawn": None})
            return Outcome(f"{len(videos)} of your own videos in {self.input} will be used", {"files": len(videos)})
        films = shot_plan.films(
            seed=run.seed, num_films=self.num_files - _NUM_SPECIAL_FILES, shots_per_film=self.shots_per_film
        )
        marker = {"folder": str(run.folder.resolve()), "drawn": self._identity(films)}
        if files.read_json_or_none(run.folder / _MARKER) == marker:
            return self._outcome(films, did_nothing=True)
        for index, film in enumerate(log.track("draw films", films), 1):
            path = run.folder / f"film-{index:02d}.mp4"
            captions = {"film": self._identity([film]), "captions": _captions(film)}
            if not path.exists() or files.read_json_or_none(path.with_suffix(".json")) != captions:
                encode_mp4(path, _frames(film, self.side_px), Fraction(self.fps), crf=self.crf)
                files.write_json(path.with_suffix(".json"), captions)  # last: they are the mark
        # The copy of the first film, the second one encoded worse, and a damaged file.
        first, second = run.folder / "film-01.mp4", films[min(1, len(films) - 1)]
        files.write_bytes(run.folder / "film-01-copy.mp4", first.read_bytes())
        shutil.copyfile(first.with_suffix(".json"), run.folder / "film-01-copy.json")
        # A copy that went through another encoder: other bytes, the same pictures.
        again = run.folder / f"film-{min(2, len(films)):02d}-reencoded.mp4"
        encode_mp4(again, _frames(second, self.side_px), Fraction(self.fps), crf=min(51, self.crf + 10))
        files.write_json(again.with_suffix(".json"), {"film": again.stem, "captions": _captions(second)})
        # What a broken download leaves: the second half is missing and the index in front is noise.
        data = first.read_bytes()
        noise = np.random.default_rng(0).bytes(min(8192, len(data) // 4))
        files.write_bytes(run.folder / "film-damaged.mp4", data[:40] + noise + data[40 + len(noise) : len(data) // 2])
        files.write_json(run.folder / _MARKER, marker)
        return self._outcome(films, did_nothing=False)

    def _identity(self, films: list[list[Shot]]) -> str:
        """Changes with anything that would change the pictures."""
        drawing = {"side_px": self.side_px, "fps": self.fps, "crf": self.crf}
        return files.sha256_text(json.dumps([drawing, [[asdict(shot) for shot in film] for film in films]]))

    def _outcome(self, films: list[list[Shot]], *, did_nothing: bool) -> Outcome:
        num_shots = sum(len(film) for film in films)
        text = f"{self.num_files} files of {self.side_px} px, {num_shots} shots in {len(films)} films"
        return Outcome(text, {"files": self.num_files, "shots": num_shots}, did_nothing)


def _captions(shots: list[Shot]) -> list[Json]:
    """One entry a shot: its frames (the last is exclusive), its caption and what it shows."""
    ends = np.cumsum([shot.num_frames for shot in shots]).tolist()
    return [
        {"first_frame": end - shot.num_frames, "last_frame": end, "caption": shot.caption(),
         "attributes": {"colour": shot.colour, "shape": shot.shape, "direction": shot.direction or "none"}}
        for shot, end in zip(shots, ends, strict=True)
    ]  # fmt: skip


def _frames(shots: list[Shot], side_px: int) -> NDArray[np.uint8]:
    """All frames of a film, (T, H, W, 3)."""
    return np.concatenate([draw(shot, side_px=side_px) for shot in shots])


def videos_in(folder: Path) -> list[Path]:
    """The video files under a folder, sorted.

    Raises:
        UserError: it is no folder, or holds none.
    """
    if not folder.is_dir():
        raise UserError(f"the input {folder} is not a folder; give the folder that holds your videos")
    found = files_below(folder, lambda name: is_taken(name, VIDEO_SUFFIXES))
    if not found:
        raise UserError(f"no video file under {folder}; looked for {', '.join(sorted(VIDEO_SUFFIXES))}")
    return found
