"""Counts what became of every file and clip, in files, clips and seconds, so that the counts add up."""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NotRequired, TypedDict

from nemo_vfm.core.storage.files import sha256_text
from nemo_vfm.curate.record.stage import ClipRecord, MediaInfo, SourceFile

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


#: A column of ledger.json: what came in, and where it went by reason
ColumnJson = TypedDict(
    "ColumnJson", {"in": float, "kept": float, "dropped": dict[str, float], "failed": dict[str, float]}
)


class SoundJson(ColumnJson):
    """The column of the sound of clips that were kept, and how many were kept as what."""

    kept_as: dict[str, int]


class LedgerJson(TypedDict):
    """What ledger.json holds: of images where there are any, and of the sound where clips were encoded."""

    files: ColumnJson
    clips: ColumnJson
    images: NotRequired[ColumnJson]
    seconds: ColumnJson
    audio: NotRequired[SoundJson]


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

    def to_json(self, unit: int = 1) -> ColumnJson:
        """As ledger.json has it; `unit` turns microseconds into seconds."""
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

    def to_json(self) -> LedgerJson:
        """As ledger.json has it; of images where there are any, and of the sound where clips were encoded."""
        found: LedgerJson = {"files": self.files.to_json(), "clips": self.clips.to_json(),
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
        name, (decision, reason) = file.found.name, file.fate()
        reason = kind_of(reason, name) if decision == "failed" else reason
        ledger.files.total += 1
        ledger.files.book(decision, reason, 1)
        if file.found.is_image:
            ledger.images.total += 1
            ledger.images.book(decision, reason, 1)
            continue
        ledger.clips.total += len(file.clips)
        ledger.microseconds.total += file.duration_us
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
        for reason_between, between_us in ((TRANSITION, file.trimmed_us), (NO_FRAMES, file.hole_us)):
            if between_us:
                ledger.microseconds.book("dropped", reason_between, between_us)
        if not file.clips:
            ledger.microseconds.book(decision, reason, file.duration_us)
    for name in ("files", "clips", "images", "microseconds", "audio"):
        assert getattr(ledger, name).adds_up(), f"the ledger's {name} do not add up: {getattr(ledger, name)}"
    return ledger
