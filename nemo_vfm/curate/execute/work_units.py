"""Defines the interface between curation and its executors: steps of work, the items to do, and their results.

A pipeline has one or two steps. The first turns an item into a stream of parts, the second maps each part to a part.
So one worker decodes a video while others score its clips, and neither waits for the end of the file.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from nemo_vfm.core.types.json_value import Json


@dataclass(frozen=True, slots=True)
class WorkItem:
    """One piece of work."""

    request: Json  #: what is to be done, as plain JSON
    megapixels: float = 0.0  #: frames times their size, which sets the limit of CPU time (`media_pipeline.megapixels`)
    #: a context in which the requested file is on this machine
    fetch: Callable[[], AbstractContextManager[object]] = nullcontext


@dataclass(frozen=True, slots=True)
class Tick:
    """Reports progress to the bar; no result."""

    frames: int  #: done since the last one


@dataclass(frozen=True, slots=True)
class LostItem:
    """Replaces an item's parts if its file is gone, or its worker died at every attempt."""

    message: str  #: why, as a sentence for the ledger


Done = tuple[int, list[object] | LostItem]  # an item's index, and its parts


class Worker(Protocol):
    """Does the work of one step; may hold a child process or a model on a GPU."""

    def do(self, item: object) -> Iterator[object]:
        """Yield the parts of one item, with `Tick`s among them. An exception stops the whole run."""
        ...

    def stop(self) -> None:
        """Release everything."""
        ...


class Work(Protocol):
    """Settings from which workers are started. They are sent to other processes, so they hold no open handles."""

    def start(self, *, isolated: bool = True) -> Worker:
        """Start a worker in this process; it loads its models now.

        Args:
            isolated: do work that may crash in a child process of this one.
        """
        ...


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a pipeline."""

    name: str  #: for progress bars and reports
    work: Work  #: starts its workers
    cpus: float = 1.0  #: cores that one worker keeps busy
    gpus: float = 0.0  #: GPUs, or a part of one, that one worker needs


@dataclass(slots=True)
class StepThroughput:
    """A step's figures for the report."""

    step: str  #: its name
    workers: int = 0  #: the most that worked at once
    parts: int = 0  #: how many parts came out of it
    busy_s: float = 0.0  #: seconds that workers worked, summed over them
    wall_s: float = 0.0  #: seconds from the first item to the last, of all steps of the pipeline together


@dataclass(slots=True)
class ProgressWatch:
    """Receives the progress of a run."""

    tick: Callable[[int], None] = lambda frames: None  #: called with the frames of each `Tick`
    steps: list[StepThroughput] = field(default_factory=list)  #: filled in by the executor


@runtime_checkable
class Executor(Protocol):
    """Runs the steps of a pipeline on all items."""

    def needs_ray(self) -> bool:
        """Whether the launcher must start Ray."""
        ...

    def run(self, steps: Sequence[Step], items: Sequence[WorkItem], watch: ProgressWatch) -> Iterator[Done]:
        """Yield each item's index, with its parts or `LostItem`, soon after it is finished.

        The parts do not depend on the executor or the number of workers; the order of items does.
        """
        ...
