"""Checks whether the captions of finished clip shards belong to their pictures.

A public curator once shipped captions of the wrong videos: answers of a batch had come back in another order. So each
caption is compared with its own pictures and with those of others. A right caption is nearer to its own pictures than
to most others'; by chance it ranks in the middle. The mean rank has a known spread under chance, which gives the
verdict. No threshold of likeness is needed, and none would fit every model.

Shape letters: N clips, D width of a vector, T frames, H height, W width, C colours (RGB).
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from typing import Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.log import info, track, warn
from nemo_vfm.core.storage.files import read_json, write_json
from nemo_vfm.core.storage.uri import Place, place
from nemo_vfm.core.types.job import Outcome, Run, makes
from nemo_vfm.curate.examine.findings import fingerprint
from nemo_vfm.data.shards.sample_members import IMAGES
from nemo_vfm.data.shards.shard_files import ShardSet
from nemo_vfm.data.shards.shard_folder import folder_at
from nemo_vfm.data.video.fit_to_bucket import decode_image

Vectors = NDArray[np.float32]  # (N, D)
MIN_CLIPS = 8
_SUSPECT = 3.0  # standard deviations by which another clip's caption fits better
FILE = "caption_check.json"


class CaptionsRefused(UserError):
    """The verdict is no, or there is too little to judge by: a finding about the user's data and no fault of ours."""


@runtime_checkable
class Likeness(Protocol):
    """Puts texts and pictures into one space, in which what belongs together lies together."""

    def of_texts(self, texts: Sequence[str]) -> Vectors:
        """One vector a text, (N, D)."""
        ...

    def of_frames(self, frames_THWC: NDArray[np.uint8]) -> NDArray[np.float32]:
        """One vector a clip, (D,)."""
        ...


@dataclass(frozen=True, slots=True)
class CaptionFit:
    """How well captions fit their clips."""

    clips: int  #: how many were compared
    mean_rank: float  #: of a clip's own caption among all captions, 0 where it is always the nearest and 0.5 by chance
    deviations: float  #: how many standard deviations below chance the mean rank lies
    likeness: float  #: mean cosine of true pairs
    shuffled: float  #: mean cosine of all other pairs
    #: of each clip whose caption fits another clip far better than it, that other clip; the worst first
    suspects: Mapping[str, str]


def compare(keys: Sequence[str], captions: Vectors, clips: Vectors) -> CaptionFit:
    """The verdict on pairs given as vectors (N, D), in the same order.

    Captions that are equal, as those of many numbers are, share a rank: half of the ties count.
    """
    if len(keys) < MIN_CLIPS:
        raise ValueError(f"{len(keys)} clips are too few to tell signal from chance, expected at least {MIN_CLIPS}")
    cosine_NN = unit(clips) @ unit(captions).T  # row: clip, column: caption
    own_N = np.diag(cosine_NN)
    # What all clips find near, such as a long caption, says nothing about one: each column is centred.
    centred_NN = cosine_NN - cosine_NN.mean(axis=0, keepdims=True)
    mine_N = np.diag(centred_NN)[:, None]
    others = len(keys) - 1
    ahead_N = (centred_NN > mine_N + 1e-6).sum(1)
    tied_N = (np.abs(centred_NN - mine_N) <= 1e-6).sum(1) - 1
    rank_N = (ahead_N + tied_N / 2) / others
    # A rank drawn evenly from 0, 1/n, ..., 1 has the variance (n + 2) / 12n.
    spread = np.sqrt((others + 2) / (12 * others) / len(keys))
    margin_N = (centred_NN.max(axis=0) - mine_N[:, 0]) / max(float(centred_NN.std()), 1e-12)
    worst = [int(number) for number in np.argsort(-margin_N, kind="stable") if margin_N[number] > _SUSPECT]
    suspects = {keys[number]: keys[int(centred_NN[:, number].argmax())] for number in worst}
    shuffled = (cosine_NN.sum() - own_N.sum()) / (len(keys) * others)
    mean = float(rank_N.mean())
    return CaptionFit(len(keys), mean, float((0.5 - mean) / spread), float(own_N.mean()), float(shuffled), suspects)


@makes("caption_check.json")
class CheckCaptions:
    """Compares the captions of finished clip shards with their pictures, true pairs against all others.

    Args:
        shards: folder of clip shards, here or in an object store.
        likeness: how a text and pictures are compared.
        num_frames: pictures a clip, spread evenly.
        at_most: clips that are compared, spread evenly over the shards; the comparison needs its square in memory.
        min_deviations: fewer standard deviations below chance is the verdict that captions do not belong.
        on_failure: `stop` ends the job in an error, `warn` in a warning.
    """

    def __init__(
        self, *, shards: Place, likeness: Likeness, num_frames: int = 4, at_most: int = 1000,
        min_deviations: float = 4.0, on_failure: Literal["stop", "warn"] = "stop",
    ) -> None:  # fmt: skip
        if num_frames < 1 or at_most < MIN_CLIPS or min_deviations <= 0:
            raise ValueError(
                f"num_frames {num_frames}, at_most {at_most} and min_deviations {min_deviations}: expected at least 1, "
                f"at least {MIN_CLIPS}, and above 0"
            )
        self.shards, self.likeness, self.num_frames = place(shards), likeness, num_frames
        self.at_most, self.min_deviations, self.on_failure = at_most, min_deviations, on_failure

    def run(self, run: Run) -> Outcome:
        """Compare, write caption_check.json, and judge.

        Raises:
            CaptionsRefused: the captions do not belong to the clips, or too few have one.
        """
        from nemo_vfm.data.video.decode import open_video

        samples = ShardSet(self.shards)
        # All that the figures are made of; what judges them is not part of it.
        index = folder_at(self.shards, None)
        marker = index.read("shards.json", 1 << 30) if index.size("shards.json") is not None else b""
        state = fingerprint(sha256(marker).hexdigest(), self.likeness, self.num_frames, self.at_most)
        try:
            known = read_json(run.folder / FILE)
            done = CaptionFit(**known["verdict"]) if known["made_of"] == state else None
        except (OSError, ValueError, KeyError, TypeError):
            done = None
        if done is not None:
            return replace(self._outcome(done), did_nothing=True)
        entries = [
            entry for entry in samples.entries if {"mp4", *IMAGES} & set(entry.members) and entry.index.get("caption")
        ]
        step = max(1, -(-len(entries) // self.at_most))
        chosen = entries[::step]
        if len(chosen) < MIN_CLIPS:
            raise CaptionsRefused(
                f"{len(chosen)} clips of {self.shards} have a caption; at least {MIN_CLIPS} are needed to judge"
            )
        vectors = []
        for entry in track("compare captions", chosen):
            still = next((name for name in IMAGES if name in entry.members), None)
            if still is not None:
                frames_THWC = decode_image(samples.read(entry, still))[None]
            else:
                with open_video(samples.read(entry, "mp4")) as reader:
                    last = reader.info().num_frames - 1
                    numbers = sorted({int(number) for number in np.linspace(0, last, self.num_frames).round()})
                    frames_THWC = reader.read(numbers)
            vectors.append(self.likeness.of_frames(frames_THWC))
        clips = np.stack(vectors)
        captions = self.likeness.of_texts([str(entry.index["caption"]) for entry in chosen])
        verdict = compare([entry.key for entry in chosen], captions, clips)
        passed = verdict.deviations >= self.min_deviations
        write_json(run.folder / FILE, {"verdict": asdict(verdict), "passed": passed, "made_of": state})
        return self._outcome(verdict)

    def _outcome(self, verdict: CaptionFit) -> Outcome:
        summary = (
            f"of {verdict.clips} clips the own caption ranks {verdict.mean_rank:.3f} on average (chance: 0.5), "
            f"{verdict.deviations:.1f} standard deviations better than chance; likeness {verdict.likeness:.3f} of true "
            f"pairs, {verdict.shuffled:.3f} of shuffled ones"
        )
        figures = {"mean_rank": verdict.mean_rank, "deviations": verdict.deviations}
        if verdict.deviations >= self.min_deviations:
            info(summary)
            return Outcome(summary, figures)
        trouble = f"captions do not belong to their clips, or the model cannot tell: {summary}. Caption the clips again"
        if self.on_failure == "stop":
            raise CaptionsRefused(trouble)
        warn(trouble)
        return Outcome(trouble, figures)


def unit(vectors: Vectors) -> Vectors:
    """The same directions, each of length 1."""
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.maximum(length, 1e-12), np.float32)
