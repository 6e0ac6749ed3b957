# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""The words curation is made of: what a file, a clip and its footage are, and the protocols of the parts.

Shape letters: T frames, H height, W width, C colours (RGB).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from nemo_vfm.data.sample import Clip

Frame = NDArray[np.uint8]  # (H, W, C)
Span = tuple[int, int]  # first frame, last frame exclusive


@dataclass(frozen=True, slots=True)
class Found:
    """One file of the source.

    Args:
        path: where it lies, or will lie once it is fetched.
        name: its path relative to the source's folder, with forward slashes: what ledgers and tables call it.
        fetch: makes it a local file for the length of a block; None where it is one.
    """

    path: Path
    name: str
    fetch: Callable[[], AbstractContextManager[Path]] | None = None

    def here(self) -> AbstractContextManager[Path]:
        """Its path, with the file at it while the block runs."""
        return nullcontext(self.path) if self.fetch is None else self.fetch()


@dataclass(frozen=True, slots=True)
class Footage:
    """What a stage sees of one clip: pairs of neighbouring frames, spread evenly, made small.

    Memory does not grow with the clip's length.

    Args:
        frames_THWC: T = 2 * pairs; frames 2k and 2k + 1 follow each other in the video
            (in a clip of one frame they are the same frame).
        fps: frames per second of the source.
    """

    frames_THWC: NDArray[np.uint8]
    fps: float

    def luma_THW(self) -> NDArray[np.uint8]:
        """BT.601 luma of every frame, full range."""
        import cv2

        return np.stack([cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY) for frame in self.frames_THWC])


@dataclass(slots=True)
class ClipRecord:
    """One clip on its way through curation; the row it becomes in the table of scores.

    Args:
        clip: which frames of which source.
        source: the name of the first file with these bytes.
        paths: every file with these bytes, since a sidecar may lie beside any of them.
        duration_us: microseconds it lasts, an integer so that ledgers add up exactly.
        scores: every number any stage gave it.
        vectors: what comparisons remember of it, by stage name.
        message: why it failed; None where it did not.
        rule: the rule that dropped it; None where it is kept or failed.
        duplicate_of: id of the kept clip that says the same.
    """

    clip: Clip
    source: str
    paths: tuple[Path, ...]
    fps: float
    width: int
    height: int
    duration_us: int
    scores: dict[str, float] = field(default_factory=dict)
    vectors: dict[str, str] = field(default_factory=dict)
    message: str | None = None
    rule: str | None = None
    duplicate_of: str | None = None
    caption: str = ""
    caption_by: str = ""

    @property
    def duration_s(self) -> float:
        """Seconds from the start of its first frame to the end of its last."""
        return self.duration_us / 1e6

    @property
    def decision(self) -> str:
        """kept, dropped or failed."""
        return "failed" if self.message is not None else "dropped" if self.rule is not None else "kept"

    def value(self, column: str) -> float:
        """A score, or one of the facts in `FACTS` that need no stage."""
        return self.scores[column] if column in self.scores else float(FACTS[column](self))


FACTS = {
    "duration_s": lambda record: record.duration_s,
    "num_frames": lambda record: record.clip.num_frames,
    "width": lambda record: record.width,
    "height": lambda record: record.height,
    "fps": lambda record: record.fps,
}


@runtime_checkable
class Source(Protocol):
    """Where the videos come from."""

    def files(self) -> list[Found]:
        """Every video file, sorted by name. UserError where there is none."""
        ...


@runtime_checkable
class Fetching(Source, Protocol):
    """A source whose videos may have to be fetched first."""

    def fetch_into(self, folder: Path) -> None:
        """Where fetched files may lie, told before `files` is called."""
        ...


@runtime_checkable
class Splitter(Protocol):
    """Cuts a video into shots."""

    def split(self, frames: Iterable[Frame], *, fps: float) -> list[Span]:
        """Spans that cover all `frames` without gap or overlap. Frames come once, in order of presentation."""
        ...


@runtime_checkable
class Stage(Protocol):
    """Gives clips numbers and decides nothing: rules do that. It is a `Score` or a `Comparison`."""

    def columns(self) -> Sequence[str]:
        """The names of the scores it gives."""
        ...


@runtime_checkable
class Score(Stage, Protocol):
    """A stage that looks at one clip at a time."""

    def measure(self, footage: Footage) -> Mapping[str, float]:
        """The scores of one clip."""
        ...


@runtime_checkable
class Comparison(Stage, Protocol):
    """A stage that remembers each clip and then compares all of them; it has one column, a likeness."""

    def remember(self, footage: Footage) -> str:
        """What is kept of one clip for comparing, as text."""
        ...

    def likeness(self, vectors: Sequence[str]) -> list[float]:
        """Of each clip to the other clip most like it."""
        ...

    def duplicates(self, clips: Sequence[ClipRecord], vectors: Sequence[str], above: float) -> dict[int, int]:
        """`{position of a duplicate: position of the clip to keep}`, for likenesses above a threshold."""
        ...


@runtime_checkable
class Captioner(Protocol):
    """Says in words what a clip shows."""

    def caption(self, record: ClipRecord) -> tuple[str, str] | None:
        """The text and who wrote it, or None where this captioner has nothing to say of the clip."""
        ...
