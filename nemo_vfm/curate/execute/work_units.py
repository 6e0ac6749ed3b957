"""Defines the contract between curation and its executors: work, items to do it on, results as they come.

A pipeline has one or two steps. The first turns an item into a stream of parts, the second a part into a part. So a
video is decoded in one place and its clips are scored in another, and neither waits for the end of the file.
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
    megapixels: float = 0.0  #: the amount of work, which sets its limit of processor time; see `megapixels`
    #: makes the requested file available on this machine while a block runs
    here: Callable[[], AbstractContextManager[object]] = nullcontext


@dataclass(frozen=True, slots=True)
class Tick:
    """More frames are done; for the progress bar only."""

    frames: int


@dataclass(frozen=True, slots=True)
class LostItem:
    """Replaces an item's parts when its worker died on every attempt."""

    message: str  #: why, as a sentence for the ledger


Done = tuple[int, list[object] | LostItem]  # an item's number, and what came of it


class Worker(Protocol):
    """Started work, which may hold a child process or a model on a GPU."""

    def do(self, item: object) -> Iterator[object]:
        """The parts that one item yields, with `Tick`s among them. An exception stops the whole run."""
        ...

    def stop(self) -> None:
        """Release everything."""
        ...


class Work(Protocol):
    """The settings of some work. They are sent to other processes, so they hold no open files or handles."""

    def start(self, *, isolated: bool = True) -> Worker:
        """Start in this process: models are loaded here, once per worker.

        Args:
            isolated: whether work that may crash is done in a child process instead of this one.
        """
        ...


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a pipeline."""

    name: str  #: for progress bars and reports
    work: Work  #: what is done
    cpus: float = 1.0  #: cores that one worker keeps busy
    gpus: float = 0.0  #: GPUs, or a part of one, that one worker needs


@dataclass(slots=True)
class StepThroughput:
    """What a step did, for the report."""

    step: str  #: its name
    workers: int = 0  #: the most that worked at once
    parts: int = 0  #: how many parts came out of it
    busy_s: float = 0.0  #: seconds that workers worked, summed over them
    wall_s: float = 0.0  #: seconds from the first item to the last, of all steps of the pipeline together


@dataclass(slots=True)
class ProgressWatch:
    """Callbacks for the progress of the work."""

    tick: Callable[[int], None] = lambda frames: None  #: called with numbers of frames
    steps: list[StepThroughput] = field(default_factory=list)  #: filled in by the executor


@runtime_checkable
class Executor(Protocol):
    """Does the steps of a pipeline for all items."""

    def needs_ray(self) -> bool:
        """Whether Ray must run on its machines."""
        ...

    def run(self, steps: Sequence[Step], items: Sequence[WorkItem], watch: ProgressWatch) -> Iterator[Done]:
        """Each item's number and parts, or `LostItem`, once it is finished; few finished items are held back.

        The parts do not depend on the executor or the number of workers; their order does.
        """
        ...
