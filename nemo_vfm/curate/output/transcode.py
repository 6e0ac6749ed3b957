"""Transcodes each kept clip to an mp4 of exactly its frames, restores it if needed, and keeps track of the results.

An image keeps its file, or becomes a PNG (`StillImage.as_stored`).

Clips are files until they are in the shards, and then they are only there. The facts about a clip stay in a small file
in `work/clips`, which says when only the shards hold the clip. The facts are deleted before the shards: after a kill
in between, a clip is encoded again, and never a wrong one used.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal, get_args

import av
import cv2
import numpy as np
from numpy.typing import NDArray

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.optional import needs_gpu
from nemo_vfm.core.storage.files import is_full, read_json, write_bytes, write_json
from nemo_vfm.core.storage.write_path import WritePath
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.core.types.media_types import Span
from nemo_vfm.curate.examine.examine_file import FileGuard, reason_of
from nemo_vfm.curate.examine.findings import fingerprint, in_names
from nemo_vfm.curate.examine.sandbox import ChildReply
from nemo_vfm.curate.record.ledger import ClipRecord
from nemo_vfm.curate.record.stage import Crops, Restoration, Restorer
from nemo_vfm.data.shards.shard_files import ShardSet, verify
from nemo_vfm.data.shards.shard_folder import Entry
from nemo_vfm.data.video.audio import clip_audio
from nemo_vfm.data.video.codecs import ENCODERS, PRESETS, Decoding, EncoderName
from nemo_vfm.data.video.encode import FrameToEncode, encode_mp4
from nemo_vfm.data.video.image_file import open_image, png
from nemo_vfm.data.video.pyav_reader import PyAVReader
from nemo_vfm.data.video.video_info import times_shown

_IN_SHARDS = "in_shards"
_LOOKED_AT = 8
_HELD_BACK = 120  # frames that an encoder may hold before it writes them: the longest lookahead of ours
Audio = Literal["keep", "drop"]


@dataclass(frozen=True, slots=True)
class EncodedMedia:
    """The encoded clips. Their file names change with the settings of encoder and restorers."""

    folder: WritePath  #: of all encoded clips
    stamp: str  #: the fingerprint of encoder and restorers
    shards: Path  #: the finished clip shards, which may hold the only copy of a clip

    @classmethod
    def of(
        cls, folder: Path, shards: Path, transcode: object, restore: Mapping[str, Restorer], decode: Decoding = "cpu"
    ) -> "EncodedMedia":
        """The clips encoded with these settings."""
        return cls(folder, fingerprint(transcode, list(restore.items()), *in_names(decode))[:8], shards)

    def path(self, clip_id: str) -> Path:
        """The path of a clip's mp4, whether it exists or not."""
        return self.folder / f"{clip_id}-{self.stamp}.mp4"

    def file_of(self, record: ClipRecord) -> Path:
        """The file of an encoded clip or image; it is extracted from the shards if only they hold it."""
        clip_id, fact = record.clip.id, self.fact_of(record)
        self._take_out(clip_id, fact)
        return self._files(clip_id, fact)[0]

    def fact_of(self, record: ClipRecord) -> Json:
        """Size, sound and repairs of an encoded clip; None if it is not encoded, or was cropped to another box."""
        clip_id = record.clip.id
        try:
            fact = read_json(self.path(clip_id).with_suffix(".json"))
            picture = None if record.picture is None else list(record.picture)
            same_box = fact.get("picture", picture) == picture
            return fact if same_box and self._is_there(clip_id, fact) else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def make_way(self, kept: Sequence[ClipRecord]) -> None:
        """Before the shards are rewritten, extract the clips that only the old shards hold and the new ones will not.

        Clips encoded with other settings are forgotten.
        """
        wanted = {record.clip.id for record in kept}
        for file in sorted(self.folder.glob("*.json")):
            clip_id, _, stamp = file.stem.rpartition("-")
            try:
                fact = read_json(file)
                if (clip_id in wanted and stamp == self.stamp) or self._has_files(clip_id, fact, stamp):
                    continue
                if stamp == self.stamp and self._is_there(clip_id, fact):
                    self._take_out(clip_id, fact)
                    write_json(file, {**fact, _IN_SHARDS: False})
                    continue
            except (OSError, ValueError, KeyError, TypeError, UserError):
                pass
            file.unlink()

    def drop(self, kept: Sequence[ClipRecord]) -> None:
        """Delete the files of clips that the shards hold, once every byte of the shards has been verified."""
        facts = {one.clip.id: self.fact_of(one) for one in kept}
        new = {clip_id: fact for clip_id, fact in facts.items() if not fact.get(_IN_SHARDS)}
        if new and (problems := verify(self.shards)):
            raise UserError(f"{problems[0]}, although it was just written; check the disk. The clips are kept in "
                            f"{self.folder}, and the next run writes the shards again")  # fmt: skip
        for clip_id, fact in new.items():
            write_json(self.path(clip_id).with_suffix(".json"), {**fact, _IN_SHARDS: True})
        for clip_id, fact in facts.items():
            for file in self._files(clip_id, fact):
                file.unlink(missing_ok=True)

    def _files(self, clip_id: str, fact: Json, stamp: str | None = None) -> list[Path]:
        """The files that belong to a fact: the clip or image first, then its sound."""
        name = f"{clip_id}-{stamp or self.stamp}"
        if "image" in fact:
            return [self.folder / f"{name}.image.{fact['image']}"]
        return [self.folder / f"{name}.{kind}" for kind in ("mp4", *(["flac"] if fact["audio"] == "flac" else []))]

    def _has_files(self, clip_id: str, fact: Json, stamp: str | None = None) -> bool:
        return all(file.is_file() for file in self._files(clip_id, fact, stamp))

    def _is_there(self, clip_id: str, fact: Json) -> bool:
        moved = bool(fact.get(_IN_SHARDS)) and clip_id in _open_shards(self.shards, _written_ns(self.shards))[1]
        return moved or self._has_files(clip_id, fact)

    def _take_out(self, clip_id: str, fact: Json) -> None:
        if self._has_files(clip_id, fact):
            return
        shards, entries = _open_shards(self.shards, _written_ns(self.shards))
        assert shards is not None, "is_there was asked before"
        for file in self._files(clip_id, fact):
            try:
                write_bytes(file, shards.read(entries[clip_id], file.suffix[1:]))
            except DataError as error:
                raise UserError(f"{self.shards} cannot be read ({error}); delete that folder, and its clips are "
                                f"encoded again") from error  # fmt: skip


def _written_ns(shards: Path) -> int:
    """When the shards were written; -1 if there are none."""
    index = shards / "shards.json"
    return index.stat().st_mtime_ns if index.is_file() else -1


@lru_cache(maxsize=2)
def _open_shards(shards: Path, changed: int) -> tuple[ShardSet | None, dict[str, Entry]]:
    if changed < 0:
        return None, {}
    try:
        found = ShardSet(shards, verify=True)
    except (DataError, UserError):
        return None, {}
    return found, {entry.key: entry for entry in found.entries}


@needs_gpu({"encoder": "nvenc"})
class Transcode:
    """Encodes clips at constant quality and a constant frame rate, upright, progressive and in square pixels.

    The rate is the source's, or the clip's own mean where the source's would not last as long; where time stamps are
    uneven, frames are repeated and left out so that each is seen when they say.

    Args:
        crf: 0 (largest) to 51; 18 is hard to tell from the source. AV1 and VP9 count to 63.
        preset: x264's word for how long it may take; other encoders get their nearest.
        encoder: x264, nvenc (a GPU's H.264), or, where H.264 must not be written, svtav1 or vp9: their films carry no
            motion vectors, so CodecMotion takes flow instead. One that does not work here is refused before any work.
        audio: keep takes the source's sound along, of several streams the default one: copied into the mp4 where that
            takes its codec (aac, ac3, alac, eac3, mp3, opus), in whole packets, else as a FLAC beside it; drop leaves
            it out.
    """

    def __init__(
        self, *, crf: int = 18, preset: str = "medium", encoder: EncoderName = "x264", audio: Audio = "keep"
    ) -> None:
        most = ENCODERS[encoder].quality[1]
        if not 0 <= crf <= most:
            raise ValueError(f"crf is {crf}, but {encoder} takes 0 to {most}")
        if preset not in PRESETS:
            raise ValueError(f"preset is {preset!r}; known are {', '.join(PRESETS)}")
        if audio not in get_args(Audio):
            raise ValueError(f"audio is {audio!r}; known are {' and '.join(get_args(Audio))}")
        self.crf, self.preset, self.encoder = crf, preset, encoder
        self.audio: Audio = audio


@dataclass(frozen=True, slots=True)
class Encode:
    """What a child does with `{"path", "name", "source_id", "state", "image", "clips": [{"id", "span", ...}]}`."""

    transcode: Transcode  #: the encoder's settings
    restore: Mapping[str, Restorer]  #: looks at clips and mends them, in this order
    media: EncodedMedia  #: where clips go
    decode: Decoding = "cpu"  #: where frames are decoded, cpu or nvdec

    def __call__(self, request: Json, tick: Callable[[int], None]) -> Iterator[ChildReply]:
        """One reply per clip: `{"id", "message"}`; message is None if it is encoded."""
        path, name, unchanged = Path(request["path"]), request["name"], FileGuard(request)
        unchanged.check()
        with nullcontext() if request.get("image") else PyAVReader(path, decode=self.decode) as reader:
            for clip in request["clips"]:
                message = None
                try:
                    if reader is None:
                        self._image(path, clip["id"], unchanged, tick)
                    else:
                        self._one(reader, path, clip, unchanged, tick)
                except MemoryError:
                    raise
                except Exception as error:  # an error in one clip must not stop the others
                    if is_full(error):
                        raise
                    message = unchanged.why_not() or reason_of(error, path, name)
                yield ChildReply({"id": clip["id"], "message": message})

    def _image(self, path: Path, clip_id: str, unchanged: FileGuard, tick: Callable[[int], None]) -> None:
        image = open_image(path)
        mended, after_THWC = self._find(image.picture_HWC[None], tick)
        extension, data = ("png", png(after_THWC[0])) if mended else image.as_stored()
        unchanged.check()
        if mended:
            picture = _side_by_side(image.picture_HWC, after_THWC[0])
            write_bytes(self.media.path(clip_id).with_suffix(".jpg"), picture)
        # `.jpg` without `.image` is the picture of before and after.
        write_bytes(self.media.folder / f"{clip_id}-{self.media.stamp}.image.{extension}", data)
        height, width = after_THWC.shape[1:3]
        fact = {"width": width, "height": height, "audio": "", "audio_failure": None, "image": extension}
        fact |= {"restored": sorted(mended), "facts": _facts(mended)}
        write_json(self.media.path(clip_id).with_suffix(".json"), fact)
        tick(1)

    def _one(
        self, reader: PyAVReader, path: Path, clip: Json, unchanged: FileGuard, tick: Callable[[int], None]
    ) -> None:
        span, target = (clip["span"][0], clip["span"][1]), self.media.path(clip["id"])
        mended: dict[str, Restoration] = {}  # what each restorer does, each given the result of those before it
        if self.restore:
            numbers = sorted({round(number) for number in np.linspace(span[0], span[1] - 1, _LOOKED_AT)})
            before_THWC = np.stack([reader.picture(frame) for _, frame in reader.decode_at(numbers, past_losses=True)])
            mended, after_THWC = self._find(before_THWC, tick, clip)
            if mended:  # a picture of before and after
                middle = len(numbers) // 2
                picture = _side_by_side(before_THWC[middle], after_THWC[middle])
                write_bytes(target.with_suffix(".jpg"), picture)
        info = reader.info()
        frames = _CountedFrames(_frames(reader, span, mended), times_shown(info, span), tick)
        how = self.transcode
        facts = _facts(mended)
        # A recorder may pause the pictures and continue the sound: sound in a gap is dropped with it.
        start_s, end_s = (float(pts * info.time_base) for pts in (info.pts[span[0]], info.end_pts(span[1] - 1)))
        with clip_audio(path, start_s, end_s, keep=how.audio == "keep") as audio, closing(frames):
            written = encode_mp4(
                target, frames, clip["fps"], crf=how.crf, preset=how.preset, encoder=how.encoder, audio=audio
            )
        if audio.flac:
            write_bytes(target.with_suffix(".flac"), audio.flac)
        why = f"{written} of {span[1] - span[0]} frames could be encoded" if written != span[1] - span[0] else None
        if (why := unchanged.why_not() or why) is not None:
            target.unlink()
            raise ValueError(why)
        failure = reason_of(DataError(audio.why), path, path.name) if audio.why else None
        sound = {"audio": audio.kind, "audio_failure": failure}
        box = {"picture": clip["picture"]} if any(isinstance(one, Crops) for one in self.restore.values()) else {}
        size = {"width": frames.width, "height": frames.height}
        write_json(target.with_suffix(".json"), {**size, **sound, **box, "restored": sorted(mended), "facts": facts})

    def _find(
        self, before_THWC: NDArray[np.uint8], tick: Callable[[int], None], clip: Json | None = None
    ) -> tuple[dict[str, Restoration], NDArray[np.uint8]]:
        """What each restorer wants to do, each given the result of those before it; the frames after all of them."""
        frames_THWC = before_THWC
        found = {}
        for name, restorer in self.restore.items():
            with _by(name):
                tick(0)
                # The file's box does not apply to frames that another restorer has resized.
                if clip and isinstance(restorer, Crops) and frames_THWC.shape == before_THWC.shape:
                    restoration = restorer.crop(clip["picture"])
                else:
                    restoration = restorer.look(frames_THWC)
                if restoration is not None:
                    found[name] = restoration
                    frames_THWC = restoration.apply(frames_THWC)
        return found, frames_THWC


@dataclass(slots=True)
class _CountedFrames:
    """Passes frames on as often as they are shown, counts each once it is certainly encoded, and notes their size."""

    _frames: Iterable[FrameToEncode]
    _times: Iterable[int]  #: that each is shown
    _tick: Callable[[int], None]
    width: int = 0
    height: int = 0
    _held: int = 0

    def __iter__(self) -> Iterator[FrameToEncode]:
        for frame, times in zip(self._frames, self._times, strict=False):
            if not self.width:
                if isinstance(frame, av.VideoFrame):
                    width, height = frame.width, frame.height
                else:
                    height, width = frame.shape[:2]
                self.width, self.height = width + width % 2, height + height % 2
            for _ in range(times):
                yield frame
                self._held += 1
                self._tick(int(self._held > _HELD_BACK))

    def close(self) -> None:
        """Count the rest: the clip is written, or never will be."""
        self._tick(min(self._held, _HELD_BACK))


def _side_by_side(before: NDArray[np.uint8], after: NDArray[np.uint8]) -> bytes:
    """Two pictures of equal height, as JPEG; never enlarged, so that fine stripes are preserved."""
    height = min(240, before.shape[0], after.shape[0])
    parts = [
        cv2.resize(picture, (max(1, round(picture.shape[1] * height / picture.shape[0])), height),
                   interpolation=cv2.INTER_AREA)
        for picture in (before, after)
    ]  # fmt: skip
    done, data = cv2.imencode(".jpg", np.hstack(parts)[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, 90])
    assert done
    return data.tobytes()


def _frames(reader: PyAVReader, span: Span, restorations: Mapping[str, Restoration]) -> Iterator[FrameToEncode]:
    """The decoder's own frames, without loss, converted to RGB only if their shape must change or they are mended.

    A lost frame is replaced by the next one, as it was for stages.
    """
    info = reader.info()
    for _, frame in reader.decode_at(range(*span), past_losses=True):
        if not restorations:
            changes = info.rotation_deg or frame.width % 2 or frame.height % 2 or not info.is_square
            yield reader.picture(frame) if changes else frame
            continue
        frames_THWC = reader.picture(frame)[None]  # one by one: eight of 4K and what is made of them filled a gigabyte
        for name, restoration in restorations.items():
            with _by(name):
                frames_THWC = restoration.apply(frames_THWC)
        yield from frames_THWC


def _facts(mended: Mapping[str, Restoration]) -> dict[str, float]:
    facts: dict[str, float] = {}
    for name, restoration in mended.items():
        with _by(name):
            facts |= restoration.facts()
            if bad := [column for column, value in facts.items() if not np.isfinite(value)]:
                raise ValueError(f"{bad[0]} is {facts[bad[0]]}, which no table can hold")
    return facts


@contextmanager
def _by(name: str) -> Iterator[None]:
    """Name the restorer in its errors: it may be the user's own, and the whole text of a KeyError is a key."""
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:
        if is_full(error):
            raise
        what = str(error) if isinstance(error, ValueError) else f"{type(error).__name__} ({error})"
        raise ValueError(f"restorer {name}: {what}") from error
