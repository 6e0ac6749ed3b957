"""Records every file and clip on its way through curation, and counts what became of them so that it adds up."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from fractions import Fraction
from math import inf, nan
from pathlib import Path

from nemo_vfm.core.storage.files import sha256_text
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.core.types.media_types import IMAGE_SUFFIXES
from nemo_vfm.data.shards.clip_id import Clip

EXACT_DUPLICATE = "exact_duplicate"
NO_CLIP_KEPT = "no_clip_kept"
TRANSITION = "transition"  # seconds between clips, of which no clip was made
NO_FRAMES = "no_frames"  # seconds between clips in which nothing is shown: holes in the time stamps
# What a source passes over: a link that leads out of it; a pipe, a folder, a link to nothing or round in a circle.
_NUMBER = re.compile(r"(?<![\w.])\d[\d,.]*(x\d+)?(?!\w)")


def kind_of(message: str, name: str) -> str:
    """The reason without the file's name and without numbers, so that all files with the same problem share one row."""
    text = message.removeprefix(f"{name}: ")
    text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", "the file", text)
    return _NUMBER.sub("N", text)


@dataclass(frozen=True, slots=True)
class TableSpan:
    """What one row of a table says about a video or a span of it."""

    row: str  #: which row, for messages
    start_s: float | None = None  #: seconds from the first frame; None starts at it
    #: seconds from the first frame; None ends after the last. Without both, the row describes the whole video.
    end_s: float | None = None
    caption: str = ""  #: of the span; empty where there is none
    scores: Mapping[str, float | str] = field(default_factory=dict)  #: numbers and labels that rules may read

    @property
    def seconds(self) -> tuple[float, float] | None:
        """Where the span begins and ends; infinity is the end of the video. None for a row about the whole video."""
        if self.start_s is None and self.end_s is None:
            return None
        return self.start_s or 0.0, inf if self.end_s is None else self.end_s


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file of the source."""

    path: Path  #: where the file is, or will be once it is fetched
    name: str  #: its path relative to the source's folder, with forward slashes: what ledgers and tables call it
    #: makes it a local file while a block runs; None if it already is one
    fetch: Callable[[], AbstractContextManager[Path]] | None = None
    #: changes with the file's bytes, as far as can be known without reading them; empty for a local file, whose size
    #: and times are compared instead
    identity: str = ""
    passed_over: str | None = None  #: why the source skips it, as a rule of the ledger; None if it does not
    #: the folder that was given as the source: links beside the file are followed while they stay inside; None is the
    #: file's own folder
    root: Path | None = None
    #: what a table says about it. A row about the whole video leaves the cutting to the splitter, and is then the only
    #: row; every other row is one clip.
    rows: tuple[TableSpan, ...] = ()

    @property
    def spans_s(self) -> list[tuple[float, float]] | None:
        """The spans that a table requests, without repeats and in order; None leaves the file to the splitter."""
        return sorted({row.seconds for row in self.rows if row.seconds is not None}) or None

    @property
    def is_image(self) -> bool:
        """Whether the file name has the suffix of an image."""
        return self.path.suffix.lower() in IMAGE_SUFFIXES

    def here(self) -> AbstractContextManager[Path]:
        """The path; the file is there while the block runs."""
        return nullcontext(self.path) if self.fetch is None else self.fetch()


@dataclass(frozen=True, slots=True)
class MediaInfo:
    """What is known of a file that can be opened."""

    num_frames: int  #: frames that can be shown
    fps: float  #: mean frames per second
    width: int  #: pixels, upright
    height: int  #: pixels, upright
    codec: str  #: FFmpeg's name of it
    time_base: Fraction  #: seconds a unit of its time stamps
    is_deep: bool = False  #: whether it is an image of 16 bits a channel, which is read as 8


@dataclass(slots=True)
class ClipRecord:
    """One clip on its way through curation; the row it becomes in the table of scores."""

    clip: Clip  #: which frames of which source
    source: str  #: the name of the first file with these bytes
    paths: tuple[Path, ...]  #: every file with these bytes, since a sidecar file may stand beside any of them
    fps: float
    width: int
    height: int
    duration_us: int  #: microseconds it lasts, an integer so that ledgers add up exactly; 0 of an image
    scores: dict[str, float | str] = field(default_factory=dict)  #: all numbers and labels that stages gave it
    vectors: dict[str, str] = field(default_factory=dict)  #: what comparing stages store about it, by stage name
    message: str | None = None  #: why it failed; None where it did not
    rule: str | None = None  #: the rule that dropped it; None where it is kept or failed
    duplicate_of: str | None = None  #: id of the kept clip that it duplicates
    caption: str = ""
    caption_by: str = ""
    #: how the caption was made, as in the clip's `.json`; every name begins with `caption_`
    caption_facts: dict[str, Json] = field(default_factory=dict)
    restored: tuple[str, ...] = ()  #: names of the restorers that repaired it
    #: the picture inside bars as its file's clips agree on it: left, top, right, bottom, the latter two exclusive, in
    #: pixels; None is the whole frame
    picture: tuple[int, ...] | None = None
    audio: str = ""  #: what happened to its sound, see `ClipAudio.kind`; empty if it is not encoded
    audio_failure: str | None = None  #: why its sound failed
    #: the source's folder, outside of which no sidecar may lie; None is each file's own folder
    root: Path | None = None
    is_image: bool = False  #: whether it is a still image: a clip of one frame without duration or rate
    source_caption: str = ""  #: the caption that the source itself gives; it takes precedence over every captioner

    @property
    def duration_s(self) -> float:
        """Seconds from the start of its first frame to the end of its last."""
        return self.duration_us / 1e6

    @property
    def decision(self) -> str:
        """kept, dropped or failed."""
        return "failed" if self.message is not None else "dropped" if self.rule is not None else "kept"

    def value(self, column: str) -> float | str:
        """A score, or one of the `FACTS` that need no stage; NaN where an image has none."""
        return self.scores[column] if column in self.scores else float(FACTS[column](self))


FACTS: dict[str, Callable[[ClipRecord], float]] = {
    "duration_s": lambda record: nan if record.is_image else record.duration_s,
    "num_frames": lambda record: nan if record.is_image else record.clip.num_frames,
    "width": lambda record: record.width,
    "height": lambda record: record.height,
    "fps": lambda record: nan if record.is_image else record.fps,
}


@dataclass(slots=True)
class FileRecord:
    """One file on its way through curation."""

    found: SourceFile
    source_id: str = ""  #: sha256 of its bytes; empty where it cannot be read
    state: str = ""  #: shows whether its bytes are still the same (`state_of`); empty for a fetched file
    info: MediaInfo | None = None  #: what its container says; None where it cannot be opened
    duration_us: int = 0  #: microseconds it lasts, 0 if unknown
    trimmed_us: int = 0  #: microseconds of it that lie between clips, in transitions that the splitter trimmed
    hole_us: int = 0  #: microseconds of it that lie between clips without a frame, in holes of the time stamps
    message: str | None = None  #: why the whole file failed; None where it did not
    #: `exact_duplicate` where it holds the bytes of an earlier file; why a source passed it over
    rule: str | None = None
    duplicate_of: str | None = None  #: the name of that file
    clips: list[ClipRecord] = field(default_factory=list)  #: what it was cut into

    @property
    def findings_key(self) -> str:
        """The key under which findings are stored: the bytes, and the spans that a table requests."""
        spans_s = self.found.spans_s
        return self.source_id if spans_s is None else f"{self.source_id}-{sha256_text(repr(spans_s))[:16]}"

    def fate(self) -> tuple[str, str]:
        """kept, dropped or failed, and the rule or message.

        A file of which no clip is kept is dropped by the rule that all its dropped clips share, or else by
        `no_clip_kept`; it has failed if not one clip was good enough to be dropped.
        """
        decisions = {clip.decision for clip in self.clips}
        if self.message is not None:
            return "failed", self.message
        if self.rule is not None:
            return "dropped", self.rule
        if "kept" in decisions:
            return "kept", ""
        if "dropped" in decisions:
            rules = sorted({clip.rule for clip in self.clips if clip.rule is not None})
            return "dropped", rules[0] if len(rules) == 1 else NO_CLIP_KEPT
        return "failed", next(
            (clip.message for clip in self.clips if clip.message), "none of its frames could be decoded"
        )

    def kinds(self) -> list[str]:
        """The kinds of failure of the file and its clips, as the ledger counts them."""
        decision, reason = self.fate()
        messages = [clip.message for clip in self.clips if clip.message is not None]
        messages += [reason] if decision == "failed" else []
        return sorted({kind_of(message, self.found.name) for message in messages})


@dataclass(slots=True)
class LedgerColumn:
    """in = kept + dropped (by rule) + failed (by kind), in whole numbers of one unit."""

    total: int = 0
    kept: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)

    def book(self, decision: str, reason: str, amount: int) -> None:
        """Book an amount that came in and what became of it."""
        if decision == "kept":
            self.kept += amount
        else:
            (self.dropped if decision == "dropped" else self.failed)[reason] += amount

    def adds_up(self) -> bool:
        """Whether all that came in is accounted for."""
        return self.total == self.kept + self.dropped.total() + self.failed.total()

    def to_json(self, unit: int = 1) -> dict[str, Json]:
        """`in`, `kept`, `dropped` by rule and `failed` by kind; `unit` turns microseconds into seconds."""
        total, kept = (amount if unit == 1 else amount / unit for amount in (self.total, self.kept))
        dropped, failed = (
            {reason: amount if unit == 1 else amount / unit for reason, amount in sorted(side.items())}
            for side in (self.dropped, self.failed)
        )
        return {"in": total, "kept": kept, "dropped": dropped, "failed": failed}


@dataclass(slots=True)
class Ledger:
    """Accounts of the same work: files, clips of videos, images and time; one of the sound of clips that were kept."""

    files: LedgerColumn = field(default_factory=LedgerColumn)
    clips: LedgerColumn = field(default_factory=LedgerColumn)
    images: LedgerColumn = field(default_factory=LedgerColumn)
    microseconds: LedgerColumn = field(default_factory=LedgerColumn)
    audio: LedgerColumn = field(default_factory=LedgerColumn)
    audio_kept_as: Counter[str] = field(default_factory=Counter)

    @property
    def kept(self) -> int:
        """Clips and images."""
        return self.clips.kept + self.images.kept

    def book_file(
        self, name: str, decision: str, reason: str, us: int, between: Mapping[str, int],
        *, is_image: bool, has_clips: bool,
    ) -> None:  # fmt: skip
        """Book a file, and of its microseconds those between its clips, by reason; all of them if it has no clips."""
        reason = kind_of(reason, name) if decision == "failed" else reason
        for column in (self.files, self.images) if is_image else (self.files,):
            column.total += 1
            column.book(decision, reason, 1)
        if is_image:
            return
        self.microseconds.total += us
        for why, between_us in between.items():
            if between_us:
                self.microseconds.book("dropped", why, between_us)
        if not has_clips:
            self.microseconds.book(decision, reason, us)

    def to_json(self) -> dict[str, Json]:
        """As ledger.json has it; of images where there are any, and of the sound where clips were encoded."""
        found: dict[str, Json] = {"files": self.files.to_json(), "clips": self.clips.to_json(),
                                  "seconds": self.microseconds.to_json(unit=1_000_000)}  # fmt: skip
        if self.images.total:
            found["images"] = self.images.to_json()
        if self.audio.total:
            found["audio"] = {**self.audio.to_json(), "kept_as": dict(sorted(self.audio_kept_as.items()))}
        return found


def count(files: Iterable[FileRecord]) -> Ledger:
    """The ledger of some files. What came in is counted by itself, from the files, not summed from what went out.

    Files that were not cut (an exact duplicate, a file that cannot be opened) have no clips; their seconds are booked
    under their own reason. What was trimmed between clips, and holes, are no clips, and count in seconds alone. Each
    image is counted once, as its file is, and has neither clips nor seconds.
    """
    ledger = Ledger()
    for file in files:
        name, is_image = file.found.name, file.found.is_image
        between = {TRANSITION: file.trimmed_us, NO_FRAMES: file.hole_us}
        ledger.book_file(name, *file.fate(), file.duration_us, between, is_image=is_image, has_clips=bool(file.clips))
        if is_image:
            continue
        ledger.clips.total += len(file.clips)
        for clip in file.clips:
            why = kind_of(clip.message, name) if clip.message is not None else clip.rule or ""
            ledger.clips.book(clip.decision, why, 1)
            ledger.microseconds.book(clip.decision, why, clip.duration_us)
            if clip.decision == "kept" and clip.audio:
                ledger.audio.total += 1
                if clip.audio in ("copied", "flac"):
                    ledger.audio_kept_as[clip.audio] += 1
                    ledger.audio.book("kept", "", 1)
                elif clip.audio_failure is not None:
                    ledger.audio.book("failed", kind_of(clip.audio_failure, name), 1)
                else:
                    ledger.audio.book("dropped", "no_audio" if clip.audio == "none" else "audio_drop", 1)
    for name in ("files", "clips", "images", "microseconds", "audio"):
        assert getattr(ledger, name).adds_up(), f"the ledger's {name} do not add up: {getattr(ledger, name)}"
    return ledger
