"""Defines the types of curation: what a file and a clip are, and the protocols of the parts.

Where each part works. Splitters, and stages that are a `Score`, a `FileScore` or a `Comparison`, see frames in the
child process that decodes. A `Learned` stage runs where the accelerator is and receives the frames it names. A
`Restorer` runs where clips are encoded. All of them are sent to other processes, so they hold settings only until they
are used.

Shape letters: T frames, H height, W width, C colours (RGB).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from fractions import Fraction
from math import inf, nan
from pathlib import Path
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from nemo_vfm.core.types.json_value import Json
from nemo_vfm.core.types.media_types import IMAGE_SUFFIXES, Frame, Span
from nemo_vfm.curate.record.footage import ClipFrames
from nemo_vfm.data.shards.clip_id import Clip


@dataclass(frozen=True, slots=True)
class TableSpan:
    """What a row of a table says of a video, or of a span of it."""

    row: str  #: which row, for messages
    start_s: float | None = None  #: seconds from the first frame; None begins with it
    #: seconds from the first frame; None ends with the last. Without both the row is of the whole video.
    end_s: float | None = None
    caption: str = ""  #: of the span; empty where there is none
    scores: Mapping[str, float | str] = field(default_factory=dict)  #: numbers and labels that rules may read

    @property
    def seconds(self) -> tuple[float, float] | None:
        """Where a span begins and ends; infinity is the end of the video. None of a row of the whole video."""
        if self.start_s is None and self.end_s is None:
            return None
        return self.start_s or 0.0, inf if self.end_s is None else self.end_s


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file of the source."""

    path: Path  #: where it lies, or will lie once it is fetched
    name: str  #: its path relative to the source's folder, with forward slashes: what ledgers and tables call it
    #: makes it a local file for the length of a block; None where it is one
    fetch: Callable[[], AbstractContextManager[Path]] | None = None
    #: changes with its bytes, as far as can be told without reading them; of a local file, empty: its size and times
    #: tell
    identity: str = ""
    passed_over: str | None = None  #: why the source does not take it, as the ledger's rule; None where it does
    #: the folder that was given as the source: links beside the file are followed while they stay inside; None is the
    #: file's own folder
    root: Path | None = None
    #: what a table says of it. A row of the whole video leaves it to the splitter, and is the only one then; others are
    #: a clip each.
    rows: tuple[TableSpan, ...] = ()

    @property
    def spans_s(self) -> list[tuple[float, float]] | None:
        """The spans that a table asks for, each once and ascending; None leaves the file to the splitter."""
        return sorted({row.seconds for row in self.rows if row.seconds is not None}) or None

    @property
    def is_image(self) -> bool:
        """Whether its name ends as an image's does."""
        return self.path.suffix.lower() in IMAGE_SUFFIXES

    def here(self) -> AbstractContextManager[Path]:
        """Its path, with the file at it while the block runs."""
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
    paths: tuple[Path, ...]  #: every file with these bytes, since a sidecar may lie beside any of them
    fps: float
    width: int
    height: int
    duration_us: int  #: microseconds it lasts, an integer so that ledgers add up exactly; 0 of an image
    scores: dict[str, float | str] = field(default_factory=dict)  #: every number, and every label, any stage gave it
    vectors: dict[str, str] = field(default_factory=dict)  #: what comparisons remember of it, by stage name
    message: str | None = None  #: why it failed; None where it did not
    rule: str | None = None  #: the rule that dropped it; None where it is kept or failed
    duplicate_of: str | None = None  #: id of the kept clip that says the same
    caption: str = ""
    caption_by: str = ""
    #: how the caption came to be, as the clip's `.json` has it; every name begins with `caption_`
    caption_facts: dict[str, Json] = field(default_factory=dict)
    restored: tuple[str, ...] = ()  #: names of the restorers that mended it
    #: the picture inside bars as its file's clips agree on it: left, top, right, bottom, the latter two exclusive, in
    #: pixels; None is the whole frame
    picture: tuple[int, ...] | None = None
    audio: str = ""  #: what became of its sound, see `ClipAudio.kind`; empty where it is not encoded
    audio_failure: str | None = None  #: why its sound failed
    #: the source's folder, outside of which no sidecar may lie; None is each file's own folder
    root: Path | None = None
    is_image: bool = False  #: whether it is a still image: a clip of one frame without duration or rate
    source_caption: str = ""  #: what the source itself says of it; it goes before every captioner

    @property
    def duration_s(self) -> float:
        """Seconds from the start of its first frame to the end of its last."""
        return self.duration_us / 1e6

    @property
    def decision(self) -> str:
        """kept, dropped or failed."""
        return "failed" if self.message is not None else "dropped" if self.rule is not None else "kept"

    def value(self, column: str) -> float | str:
        """A score, or one of the facts in `FACTS` that need no stage: NaN where an image has none."""
        return self.scores[column] if column in self.scores else float(FACTS[column](self))


FACTS: dict[str, Callable[[ClipRecord], float]] = {
    "duration_s": lambda record: nan if record.is_image else record.duration_s,
    "num_frames": lambda record: nan if record.is_image else record.clip.num_frames,
    "width": lambda record: record.width,
    "height": lambda record: record.height,
    "fps": lambda record: nan if record.is_image else record.fps,
}


@runtime_checkable
class Source(Protocol):
    """Where the videos come from."""

    def files(self) -> list[SourceFile]:
        """Every video file, and each that is passed over, sorted by name. UserError where there is none to take."""
        ...


@runtime_checkable
class Fetching(Source, Protocol):
    """A source whose videos may have to be fetched first."""

    def fetch_into(self, folder: Path) -> None:
        """Where fetched files may lie, told before `files` is called."""
        ...


@runtime_checkable
class GivesScores(Source, Protocol):
    """A source that knows scores of its clips, which rules may read like those of stages."""

    def score_columns(self) -> Mapping[str, type[float] | type[str]]:
        """Their names, and whether they are numbers or words, from the data themselves."""
        ...


@runtime_checkable
class Splitter(Protocol):
    """Cuts a video into shots."""

    def spans(self, frames: Iterable[Frame], *, fps: float) -> Iterator[Span]:
        """Spans of `frames` in order and without overlap, each given as soon as it is certain.

        The first begins at the first frame and the last ends at the last; frames between spans belong to no shot.
        A video whose time stamps have holes is given part by part, in one call each.
        Frames come once, small, in order of presentation. What is held back is held in memory by the caller, too.
        """
        ...


@runtime_checkable
class Ready(Protocol):
    """A part that may turn out to be unusable: asked once, before any video, lest every file fails for it."""

    def ready(self) -> None:
        """UserError or DataError where it cannot work, such as for weights of another network."""
        ...


@runtime_checkable
class Stage(Protocol):
    """Gives clips numbers and labels, and decides nothing: rules do that.

    What a recipe names is one of `AnyStage`: a restorer, too, has columns. What it finds is kept from one run to the
    next. Whoever changes what its code computes raises `results_revision` of its class, a number (1 where none is).
    """

    def columns(self) -> Sequence[str]:
        """The names of the scores it gives, all of them, such as `motion.global_mean`."""
        ...


@runtime_checkable
class Labelling(Stage, Protocol):
    """A stage some of whose columns are words and not numbers."""

    def labels(self) -> Mapping[str, Sequence[str]]:
        """Of each such column, the words that may stand in it."""
        ...


@runtime_checkable
class Score(Stage, Protocol):
    """A stage that looks at one clip at a time."""

    def measure(self, footage: ClipFrames) -> Mapping[str, float | str]:
        """The scores of one clip; ValueError costs that clip only."""
        ...


@runtime_checkable
class FileScore(Stage, Protocol):
    """A stage whose scores of a clip depend on all clips of its file."""

    def remember(self, footage: ClipFrames) -> str:
        """What is kept of one clip, as text; ValueError costs that clip only."""
        ...

    def agree(self, memories: Sequence[str]) -> Sequence[Mapping[str, float | str]]:
        """The scores of each of a file's clips, given what is kept of all of them, in order."""
        ...


@runtime_checkable
class ReadsVectors(Score, Protocol):
    """A stage that wants `ClipFrames.motion_vectors`; without such a stage the decoder is not asked for them."""

    def reads_vectors(self) -> bool:
        """Whether it wants them as it is set."""
        ...


@runtime_checkable
class Compares(Stage, Protocol):
    """A stage that compares all clips with each other; it has one column, a likeness."""

    def likeness(self, vectors: Sequence[str]) -> list[float]:
        """Of each clip to the other clip most like it."""
        ...

    def duplicates(self, clips: Sequence[ClipRecord], vectors: Sequence[str], above: float) -> dict[int, int]:
        """`{position of a duplicate: position of the clip to keep}`, for likenesses above a threshold."""
        ...


@runtime_checkable
class Comparison(Compares, Protocol):
    """A comparison that needs no weights: each clip is remembered where it is decoded."""

    def remember(self, footage: ClipFrames) -> str:
        """What is kept of one clip for comparing, as text."""
        ...


@dataclass(frozen=True, slots=True)
class Finding:
    """What a learned stage says of a clip."""

    scores: Mapping[str, float | str] = field(default_factory=dict)  #: its columns; those of a comparison come later
    #: what a learned comparison remembers of the clip, as text; None where there is nothing to compare
    vector: str | None = None


@runtime_checkable
class Learned(Stage, Protocol):
    """A stage that bears a model. It may be one of `Compares`, too."""

    def wanted(self, num_frames: int, fps: float) -> list[int]:
        """The numbers of the frames it wants of a clip, ascending."""
        ...

    def load(self) -> None:
        """Read the weights from their local path; once a process, before the first `judge`."""
        ...

    def judge(self, clips: Sequence[NDArray[np.uint8]]) -> list[Finding]:
        """What it says of each clip, given the wanted frames of each, (T, H, W, C).

        A clip must get the same finding in any company.
        """
        ...

    def fingerprint(self) -> str:
        """Changes whenever the same frames would get another finding: settings and the bytes of the weights."""
        ...


AnyStage: TypeAlias = Score | FileScore | Comparison | Learned


@runtime_checkable
class Restoration(Protocol):
    """What is to be done to one clip."""

    def apply(self, frames_THWC: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Some successive frames, restored; all of a clip's pieces get the same size."""
        ...

    def facts(self) -> Mapping[str, float]:
        """What was found and done, by column of the table."""
        ...


@runtime_checkable
class Restorer(Protocol):
    """Looks at clips that are kept, at full size, and mends those that need it while they are encoded."""

    def look(self, frames_THWC: NDArray[np.uint8]) -> Restoration | None:
        """Choose a restoration from up to 8 evenly spaced frames at full size; None leaves every bit as it is."""
        ...

    def columns(self) -> Sequence[str]:
        """The names of the facts it gives."""
        ...


@runtime_checkable
class Crops(Restorer, Protocol):
    """A restorer that goes by what all clips of a file agree on, and looks itself only where nobody asked them."""

    def crop(self, picture: Sequence[int] | None) -> Restoration | None:
        """From `ClipRecord.picture`, what is to be done."""
        ...


@runtime_checkable
class Captioner(Protocol):
    """Says in words what a clip shows."""

    def caption(self, record: ClipRecord) -> tuple[str, str] | None:
        """The text and who wrote it, or None where this captioner has nothing to say of the clip."""
        ...
