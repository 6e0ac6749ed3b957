"""Declares jobs, the roots of recipes: one method, `run`; and what they need; tells other ranks which begins."""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Protocol, TypeVar, runtime_checkable

from nemo_vfm.core.types.json_value import Json

#: Folders in a run folder that no job writes to: a launcher's scripts, copy of the code and logs; how parts went.
LAUNCH, PARTS = "launch", "parts"
#: Records in a run folder: who holds it, how the run goes, what it was begun from.
LOCK, STATUS, MANIFEST, RECIPE = ".lock", "status.json", "manifest.json", "recipe.yaml"
#: Records in the folder of a step, or of a run without steps: what it was asked for; what came of it.
STARTED, DONE = "started.json", "done.json"
#: What a person reads of a run: why it failed; its page.
TRACEBACK, REPORT = "traceback.txt", "report.html"
#: All that a run writes of itself but the lock; the recipe last, without which a folder is no run's.
RECORDS = (STATUS, MANIFEST, STARTED, TRACEBACK, REPORT, RECIPE)
#: The table beside the runs of a sweep.
SWEEP = "sweep.json"


@dataclass(frozen=True, slots=True)
class Run:
    """What the command line tells a job: where to write, from which recipe, with which seed."""

    folder: Path  #: the run folder; it exists and is writable
    #: the composed recipe as plain values, without secrets; of a workflow's step, its own part.
    settings: Mapping[str, Json] = field(default_factory=dict)
    seed: int = 0  #: the seed of all random numbers
    resume: bool = False  #: True where the folder holds an unfinished run of this recipe
    #: of a workflow's step, a hash of what its own recipe does not say: the seed, and the steps above it.
    before: str = ""

    def step(self, name: str) -> "Run":
        """The same run, one folder down: what a workflow gives to its step."""
        steps = self.settings.get("steps") or {}
        return replace(self, folder=self.folder / name, settings=steps.get(name) or {})


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a job ended."""

    summary: str  #: one line for the user
    figures: Mapping[str, float] = field(default_factory=dict)  #: numbers worth keeping, `{name: number}`
    did_nothing: bool = False  #: True where the work had been done before


@runtime_checkable
class Job(Protocol):
    """The root of a recipe."""

    def run(self, run: Run) -> Outcome:
        """Do the work inside `run.folder`; called again after a kill, resume where it stopped."""
        ...


Made = TypeVar("Made", bound=type)
_MAKES = "_makes"


def makes(*names: str) -> Callable[[Made], Made]:
    """Mark a job's class with the files and folders in its run folder that other jobs may read, records apart."""

    def mark(kind: Made) -> Made:
        setattr(kind, _MAKES, names)
        return kind

    return mark


def made_by(target: object) -> tuple[str, ...]:
    """What a job of this class makes; nothing where its class does not say."""
    names: tuple[str, ...] = getattr(target, _MAKES, ())
    return names


@runtime_checkable
class MultiRankJob(Protocol):
    """A job that may work on several ranks at once."""

    def require(self, num_ranks: int) -> None:
        """ValueError where it cannot work on so many, with the product and its factors."""
        ...


@dataclass(frozen=True, slots=True)
class JobShard:
    """One of several shares of a job's work."""

    number: int  #: which, from 0
    count: int  #: of so many
    round: int = 0  #: of the job's rounds, from 0: the second begins when all parts of the first are done

    def has(self, name: str) -> bool:
        """Whether the thing of this name is this part's: a function of the name alone, so none is left over."""
        return int(sha256(name.encode()).hexdigest(), 16) % self.count == self.number


@runtime_checkable
class ShardedJob(Protocol):
    """A job whose work parts can do without each other; a run after them does the rest and comes to the same."""

    def run_part(self, run: Run, part: JobShard) -> Outcome:
        """Do this part's share in the run's folder, which the other parts work in, too."""
        ...


@dataclass(frozen=True, slots=True)
class DevicePlan:
    """What a job would do with a number of GPUs, as far as is known without one."""

    num_used: int  #: how many of them would work
    parameters: int  #: of the model
    state_bytes: Mapping[str, int]  #: `{what: bytes}` that each working GPU holds all the time, activations apart
    notes: tuple[str, ...] = ()  #: sentences about what will not go as the number of GPUs suggests


@dataclass(frozen=True, slots=True)
class PhaseNeeds:
    """One of the phases of a job whose number of ranks may change, which raises `NextPhase` where it does."""

    name: str  #: of the phase
    ranks: int  #: it works on
    degrees: Mapping[str, int]  #: of parallelism, by axis


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a job needs, as far as its recipe says."""

    #: processes that work at once: of the widest phase, or of the next one in a run folder that is asked about.
    ranks: int = 1
    #: machines of which it takes all GPUs, so that only they say how many ranks there are; 0 where the recipe says it.
    whole_nodes: int = 0
    phases: tuple[PhaseNeeds, ...] = ()  #: in order; none where there is one
    degrees: Mapping[str, int] = field(default_factory=dict)  #: of the widest layout, by axis
    engine: str = ""  #: what carries a training out: torch or megatron; empty where nothing is trained
    plannable: bool = False  #: whether it trains by our own steps, so that `nemo-vfm plan` can rank layouts for it
    any_nodes: bool = False  #: whether it takes all GPUs of as many machines as it gets: files of its own say how many
    ray: bool = False  #: whether its work is spread by Ray
    rounds: int = 0  #: how often all parts of a `ShardedJob` are gone through; 0 where it has no parts
    #: `{argument: names}`: of the argument's mapping, nothing reads any other name.
    names_read: Mapping[str, Collection[str]] = field(default_factory=dict)
    #: for the number of GPUs that was asked about; None where none was, or nothing is known.
    plan: DevicePlan | None = None


@runtime_checkable
class HasNeeds(Protocol):
    """A job that needs more than one process."""

    def needs(self, *, num_gpus: int | None = None, folder: Path | None = None) -> Needs:
        """What it needs; nothing of the machine is looked at.

        Args:
            num_gpus: plan for so many, too, which may build the model without memory.
            folder: the run folder in which it would resume.
        """
        ...


@runtime_checkable
class MakesVocab(Protocol):
    """A job that makes a tokenizer, or texts as its tokens, for the steps after it."""

    def made_vocab(self) -> tuple[str, object]:
        """A folder in its run folder, and how many tokens there are at most, or the tokenizer that says it."""
        ...


def needs_of(job: Job, *, num_gpus: int | None = None, folder: Path | None = None) -> Needs:
    """What a job needs; any job that does not say needs one process."""
    return job.needs(num_gpus=num_gpus, folder=folder) if isinstance(job, HasNeeds) else Needs()


_TELLERS: list[Callable[[Run], None]] = []


def announce(run: Run) -> None:
    """Tell the other ranks, where there are any, that the job of this folder begins."""
    for tell in _TELLERS:
        tell(run)


@contextmanager
def heard_by(tell: Callable[[Run], None]) -> Iterator[None]:
    """What is announced inside the block is told, so that all ranks do the job of that run's folder."""
    _TELLERS.append(tell)
    try:
        yield
    finally:
        _TELLERS.remove(tell)
