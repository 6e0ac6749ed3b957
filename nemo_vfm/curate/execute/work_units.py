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
class Item:
    """One piece of work."""

    request: Json  #: what is to be done, as plain JSON
    megapixels: float = 0.0  #: how much is to be worked on, which limits its processor time; see `megapixels`
    #: makes what the request speaks of present on this machine for the length of a block
    here: Callable[[], AbstractContextManager[object]] = nullcontext


@dataclass(frozen=True, slots=True)
class Tick:
    """So many frames more are done; of interest to a progress bar only."""

    frames: int


@dataclass(frozen=True, slots=True)
class Lost:
    """What takes the place of an item's parts when its worker died, again and again."""

    message: str  #: why, as a sentence for the ledger


Done = tuple[int, list[object] | Lost]  # an item's number, and what came of it


class Worker(Protocol):
    """Work that has begun: it may hold a child process, or a model on a GPU."""

    def do(self, item: object) -> Iterator[object]:
        """The parts that come of one item, with `Tick`s among them. What it raises stops the whole run."""
        ...

    def stop(self) -> None:
        """Let go of everything."""
        ...


class Work(Protocol):
    """Settings of some work. They are sent to where it is done, so they hold nothing that is open."""

    def start(self, *, isolated: bool = True) -> Worker:
        """Begin, in this process: models are loaded here, once a worker.

        Args:
            isolated: what may crash is done in a child process, and not in this one.
        """
        ...


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a pipeline."""

    name: str  #: for people
    work: Work  #: what is done
    cpus: float = 1.0  #: cores that one worker keeps busy
    gpus: float = 0.0  #: GPUs, or a part of one, that one worker needs


@dataclass(slots=True)
class Throughput:
    """What a step did, for the report."""

    step: str  #: its name
    workers: int = 0  #: the most that worked at once
    parts: int = 0  #: how many parts came out of it
    busy_s: float = 0.0  #: seconds that workers worked, summed over them
    wall_s: float = 0.0  #: seconds from the first item to the last, of all steps of the pipeline together


@dataclass(slots=True)
class Watch:
    """Callbacks for the progress of the work."""

    tick: Callable[[int], None] = lambda frames: None  #: called with numbers of frames
    steps: list[Throughput] = field(default_factory=list)  #: filled in by the executor


@runtime_checkable
class Executor(Protocol):
    """Does the steps of a pipeline for all items."""

    needs_ray: bool  #: whether Ray must run on its machines

    def run(self, steps: Sequence[Step], items: Sequence[Item], watch: Watch) -> Iterator[Done]:
        """Of each item, as it is finished, its number and all its parts, or `Lost`; few more are held than are at work.

        Parts do not depend on who executes, nor on how many workers there are; the order does.
        """
        ...
