"""Defines the protocols of curation's parts.

Where each part works. Splitters, and stages that are a `Score`, a `FileScore` or a `Comparison`, see frames in the
child process that decodes. A `LearnedStage` runs where the accelerator is and receives the frames it names. A
`Restorer` runs where clips are encoded. All of them are sent to other processes, so they hold settings only until they
are used.

Shape letters: T frames, H height, W width, C colours (RGB).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from nemo_vfm.core.types.media_types import Frame, Span
from nemo_vfm.curate.record.footage import ClipFrames
from nemo_vfm.curate.record.ledger import ClipRecord, SourceFile


@runtime_checkable
class Source(Protocol):
    """Where the videos come from."""

    def files(self) -> list[SourceFile]:
        """All files, also those that are skipped, sorted by name. UserError if none can be used."""
        ...


@runtime_checkable
class FetchesVideos(Source, Protocol):
    """A source whose videos may have to be fetched first."""

    def fetch_into(self, folder: Path) -> None:
        """Set the folder for fetched files; called before `files`."""
        ...


@runtime_checkable
class GivesScores(Source, Protocol):
    """A source that gives scores for its clips, which rules may read like those of stages."""

    def score_columns(self) -> Mapping[str, type[float] | type[str]]:
        """The names of the scores, and whether each holds numbers or words, as found in the data."""
        ...


@runtime_checkable
class Splitter(Protocol):
    """Cuts a video into shots."""

    def spans(self, frames: Iterable[Frame], *, fps: float) -> Iterator[Span]:
        """Spans of `frames` in order and without overlap, each yielded as soon as it is certain.

        The first begins at the first frame and the last ends at the last; frames between spans belong to no shot.
        A video whose time stamps have holes is given part by part, in one call each.
        Frames come once, small, in presentation order. Frames that wait for a decision stay in the caller's memory.
        """
        ...


@runtime_checkable
class Ready(Protocol):
    """A part that may be unusable: checked once, before the first video, so that not every file fails because of it."""

    def ready(self) -> None:
        """UserError or DataError if it cannot work, for example with weights of another network."""
        ...


@runtime_checkable
class Stage(Protocol):
    """Gives clips numbers and labels. It decides nothing; rules do.

    A recipe names one of `AnyStage`; a restorer has columns, too. Results are kept from one run to the next: after a
    change to what the code computes, raise `results_revision` of the class (a number; 1 if there is none).
    """

    def columns(self) -> Sequence[str]:
        """The names of the scores it gives, all of them, such as `motion.global_mean`."""
        ...


@runtime_checkable
class HasLabels(Stage, Protocol):
    """A stage some of whose columns hold words instead of numbers."""

    def labels(self) -> Mapping[str, Sequence[str]]:
        """For each such column, the words that it may hold."""
        ...


@runtime_checkable
class Score(Stage, Protocol):
    """A stage that looks at one clip at a time."""

    def measure(self, footage: ClipFrames) -> Mapping[str, float | str]:
        """The scores of one clip; a ValueError fails that clip alone."""
        ...


@runtime_checkable
class FileScore(Stage, Protocol):
    """A stage whose scores of a clip depend on all clips of its file."""

    def remember(self, footage: ClipFrames) -> str:
        """What is stored about one clip, as text; a ValueError fails that clip alone."""
        ...

    def agree(self, memories: Sequence[str]) -> Sequence[Mapping[str, float | str]]:
        """The scores of each clip of a file, given what was stored about all of them, in order."""
        ...


@runtime_checkable
class ReadsVectors(Score, Protocol):
    """A stage that needs `ClipFrames.motion_vectors`; without such a stage the decoder does not export them."""

    def reads_vectors(self) -> bool:
        """Whether it needs them with its settings."""
        ...


@runtime_checkable
class Compares(Stage, Protocol):
    """A stage that compares all clips with each other; its one column is a similarity."""

    def likeness(self, vectors: Sequence[str]) -> list[float]:
        """The similarity of each clip to the other clip most like it."""
        ...

    def duplicates(self, clips: Sequence[ClipRecord], vectors: Sequence[str], above: float) -> dict[int, int]:
        """`{position of a duplicate: position of the clip to keep}`, for likenesses above a threshold."""
        ...


@runtime_checkable
class Comparison(Compares, Protocol):
    """A comparison that needs no weights: what it stores about a clip is computed where the clip is decoded."""

    def remember(self, footage: ClipFrames) -> str:
        """What is stored about one clip for the comparison, as text."""
        ...


@dataclass(frozen=True, slots=True)
class LearnedFinding:
    """What a learned stage finds in a clip."""

    scores: Mapping[str, float | str] = field(default_factory=dict)  #: its columns; those of a comparison come later
    #: what a learned comparison stores about the clip, as text; None if it compares nothing
    vector: str | None = None


@runtime_checkable
class LearnedStage(Stage, Protocol):
    """A stage with a model. It may also be one of `Compares`."""

    def frame_indices(self, num_frames: int, fps: float) -> list[int]:
        """The numbers of the frames that it needs from a clip, ascending."""
        ...

    def load(self) -> None:
        """Read the weights from their local path; called once per process, before the first `judge`."""
        ...

    def judge(self, clips: Sequence[NDArray[np.uint8]]) -> list[LearnedFinding]:
        """The findings about each clip, given its wanted frames, (T, H, W, C).

        A clip must get the same finding whatever other clips are judged with it.
        """
        ...

    def fingerprint(self) -> str:
        """Changes whenever the same frames would get another finding: settings and the bytes of the weights."""
        ...


AnyStage: TypeAlias = Score | FileScore | Comparison | LearnedStage


@runtime_checkable
class Restoration(Protocol):
    """A repair of one clip."""

    def apply(self, frames_THWC: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Restore some successive frames; all pieces of a clip get the same size."""
        ...

    def facts(self) -> Mapping[str, float]:
        """What was found and done, by column of the table of scores."""
        ...


@runtime_checkable
class Restorer(Protocol):
    """Inspects kept clips at full size, and repairs those that need it while they are encoded."""

    def look(self, frames_THWC: NDArray[np.uint8]) -> Restoration | None:
        """Choose a restoration from up to 8 evenly spaced frames at full size; None leaves every bit as it is."""
        ...

    def columns(self) -> Sequence[str]:
        """The names of the facts it gives."""
        ...


@runtime_checkable
class Crops(Restorer, Protocol):
    """A restorer that uses the box that all clips of a file agree on, and inspects frames only where there is none."""

    def crop(self, picture: Sequence[int] | None) -> Restoration | None:
        """Choose a restoration from `ClipRecord.picture`."""
        ...


@runtime_checkable
class Captioner(Protocol):
    """Says in words what a clip shows."""

    def caption(self, record: ClipRecord) -> tuple[str, str] | None:
        """The text and its author, or None if this captioner has no caption for the clip."""
        ...
