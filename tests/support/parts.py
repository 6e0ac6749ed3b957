"""Defines small components and jobs that tests of recipes name."""

import datetime
import errno
import json
import logging as logging  # an alias as careless modules have it: `parts.logging.os.system` must stay out of reach
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial as partial
from os import system as system
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NewType, NotRequired, Protocol, TypedDict

import torch
from pydantic import Field

from nemo_vfm.core.duration import Duration
from nemo_vfm.core.errors import NothingKept
from nemo_vfm.core.network.permission import SentText, UserOnly
from nemo_vfm.core.storage.uri import Address
from nemo_vfm.core.storage.write_path import WritePath
from nemo_vfm.core.types.factory import Factory
from nemo_vfm.core.types.job import JobShard, Needs, Outcome, Run


class Stage(Protocol):
    """A slot's type."""

    def apply(self, value: float) -> float: ...


class Scale:
    """Multiplies."""

    def __init__(self, *, by: float, mode: Literal["exact", "rounded"] = "exact") -> None:
        if by == 0:
            raise ValueError(f"a scale of {by} forgets its input")
        self.by, self.mode = by, mode

    def apply(self, value: float) -> float:
        return value * self.by


class Shift:
    """Adds, and has no argument in common with Scale."""

    def __init__(self, *, offset: float = 1.0) -> None:
        self.offset = offset

    def apply(self, value: float) -> float:
        return value + self.offset


class Mixing:
    """Has the method of a Stage, which means something else here."""

    def apply(self, value: float, other: float) -> float:
        return value + other


class Naming:
    """Has the method of a Stage, which gives something else here."""

    def apply(self, value: float) -> list[str]:
        return [str(value)]


class Reading:
    """Has the method of a Stage, which takes something else here."""

    def apply(self, value: Path) -> float:
        return float(value.read_text())


class Lenient:
    """Fits, with wider and narrower types than a Stage's, and a name that only a type checker knows."""

    def apply(self, value: "float | Reckoned | None") -> "Literal[1, 2]":  # noqa: F821
        return 2


class Relaxed:
    """Fits, since it takes what a Stage is given, and could take more."""

    @staticmethod
    def apply(number: float, *others: float, power: float = 1.0) -> float:
        return number**power


class Quiet:
    """Fits no slot: it has no `apply`."""


@dataclass(frozen=True)
class Size:
    """A concrete class, whose slot needs no `_target_`."""

    width: int
    height: int = 64


class Loose:
    """As third-party classes are: it takes anything."""

    def __init__(self, value: Any = None, **more: Any) -> None:
        self.value, self.more = value, more


class Unsaid(Loose):
    """Says the types of its arguments by their defaults alone."""

    def __init__(self, flag=True, rate=0.5, count=1, word="one", other=None):
        super().__init__((flag, rate, count, word, other))


class Wide:
    """One argument of every kind that a recipe can give."""

    def __init__(
        self, *, name: str = "w", count: int = 1, rate: float = 1.0, flag: bool = False, out: Path | None = None,
        pair: tuple[int, int] = (1, 2), names: Sequence[str] = (), weights: Mapping[str, float] | None = None,
        duration: Duration | None = None, size: Size | None = None, stage: Stage | None = None,
        stages: Mapping[str, Stage] | None = None, chain: Sequence[Stage] = (), either: int | str = 0,
        optimizer: Factory[[list[torch.nn.Parameter]], torch.optim.Optimizer] | None = None,
        later: Factory[[float], Stage] | None = None, make: Factory[[], Stage] | None = None,
        loose: Loose | None = None,
    ) -> None:  # fmt: skip
        self.__dict__.update({key: value for key, value in locals().items() if key != "self"})

    def run(self, run: Run) -> Outcome:
        return Outcome("ran")


class Writes:
    """A job that writes a file of the recipe's choice."""

    def __init__(self, *, file: WritePath, more: Mapping[str, WritePath | None] | None = None) -> None:
        self.file, self.more = file, dict(more or {})

    def run(self, run: Run) -> Outcome:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_text("written")
        return Outcome("wrote")


class Three:
    """Keeps three stages, to see which of them are the same object."""

    def __init__(self, *, first: Stage, second: Stage, third: Stage) -> None:
        self.first, self.second, self.third = first, second, third

    def apply(self, value: float) -> float:
        return self.third.apply(self.second.apply(self.first.apply(value)))


class Both:
    """Takes one number by position, from whoever calls the factory."""

    def __init__(self, given: float, *, more: float) -> None:
        self.given, self.more = given, more

    def apply(self, value: float) -> float:
        return value * self.given + self.more


def double(*, mode: Literal["exact"] = "exact") -> Scale:
    """A function that makes a component."""
    return Scale(by=2.0)


class Count:
    """A job that counts to `duration` steps, a file a step, and goes on where it was killed.

    Args:
        duration: how far.
        source: a folder whose files it adds up, from an earlier step.
        die_at: kills its own process there, on the first try only.
        pause_s: between two steps.
    """

    def __init__(
        self, *, duration: Duration, source: Path | None = None, die_at: int = 0, pause_s: float = 0.0,
        log_every: int = 1, weight: float = 1.0,
    ) -> None:  # fmt: skip
        self.duration, self.source, self.die_at, self.pause_s, self.weight = duration, source, die_at, pause_s, weight

    def run(self, run: Run) -> Outcome:
        steps = run.folder / "steps"
        steps.mkdir(exist_ok=True)
        base = sum(int(file.read_text()) for file in self.source.iterdir()) if self.source else 0
        first = len(list(steps.iterdir()))
        for number in range(first, int(self.duration.amount)):
            if number == self.die_at and not run.resume and self.die_at:
                os.kill(os.getpid(), 9)
            (steps / f"{number:03d}").write_text(str(base + number))
            time.sleep(self.pause_s)
        calls = run.folder / "calls.json"
        earlier = json.loads(calls.read_text()) if calls.is_file() else []
        calls.write_text(json.dumps([*earlier, {"from": first, "resume": run.resume, "seed": run.seed}]))
        return Outcome(f"counted to {self.duration}", {"steps": self.duration.amount})


class Guarded:
    """A job that says whether it was protected; a step of a workflow, too."""

    def __init__(self, *, strict: Annotated[bool, UserOnly(False)] = True, duration: Duration | None = None) -> None:
        self.strict = strict

    def run(self, run: Run) -> Outcome:
        with (run.folder / "strict.txt").open("a") as file:
            file.write(f"{self.strict}\n")
        return Outcome("ran")


class Fail:
    """A job that ends badly."""

    def __init__(self, *, how: Literal["unexpected", "nothing", "interrupt", "user", "full"]) -> None:
        self.how = how

    def run(self, run: Run) -> Outcome:
        if self.how == "nothing":
            raise NothingKept("no clip was kept: 3 were too_short")
        if self.how == "interrupt":
            raise KeyboardInterrupt
        if self.how == "user":
            raise ValueError("a plain ValueError while running is a surprise")
        if self.how == "full":
            raise OSError(errno.ENOSPC, "No space left on device")
        raise RuntimeError("the disk is on fire")


class Colour(Enum):
    """A choice by value."""

    RED = "red"
    BLUE = "blue"


class Point(NamedTuple):
    """A named tuple, which is written as a mapping."""

    x: int
    y: int = 0


class Limits(TypedDict):
    """A mapping that says what its keys are."""

    low: float
    high: NotRequired[float]


class Calling(Protocol):
    """A slot's type: something that is called."""

    def __call__(self, value: float) -> float: ...


class Called:
    """Fits it."""

    def __call__(self, value: float) -> float:
        return value


Metres = NewType("Metres", float)


class Outer:
    """Has a class inside, which a recipe cannot name."""

    class Inner(Shift):
        """Would fit a slot."""


SPARE = Shift()


class Typed:
    """Annotations that are rarer than those of Wide."""

    def __init__(
        self, *, colour: Colour = Colour.RED, metres: Metres = Metres(1.0), above_zero: Annotated[int, Field(gt=0)] = 1,
        level: Literal[1, 2, "top", None] = 1, by_number: Mapping[int, float] | None = None,
        by_colour: Mapping[Colour, int] | None = None, by_side: Mapping[Literal["left", "right"], int] | None = None,
        grid: Sequence[Sequence[int]] = (), point: Point | None = None, limits: Limits | None = None,
        either: Scale | Shift | None = None, sizes: Sequence[Size] = (),
        makers: Mapping[str, Factory[[], Stage]] | None = None, when: datetime.timedelta | None = None,
        nothing: tuple[()] = (), mode: Literal["fast"] | int = 1,
        noted: Annotated[Scale | None, "with a note"] = None, durations: Mapping[str, Duration] | None = None,
        caught: set[int] | None = None, calling: Calling | None = None,
        spared: Annotated[int | None, Field(gt=0)] = None,
        several: Annotated[Sequence[int], Field(min_length=2)] = (1, 2),
        few: Annotated[Mapping[str, int], Field(max_length=1)] | None = None,
        unhashed: Annotated[int, {"unit": "m"}] = 1, misled: Annotated[int | str, Field(gt=0)] = 1,
        sent: SentText = "", copy_to: Address | None = None,
    ) -> None:  # fmt: skip
        self.__dict__.update({key: value for key, value in locals().items() if key != "self"})

    def run(self, run: Run) -> Outcome:
        return Outcome("ran")


class Trips:
    """Fails while it is made, in the way that it is told to."""

    def __init__(self, *, how: Literal["argument", "deep", "zero", "key", "echo"], text: str = "") -> None:
        if how == "argument":
            raise TypeError("text must be longer")
        if how == "echo":
            raise ValueError(f"cannot use {text!r}: it begins with {text[:8]} and ends with {text[-8:]}")
        if how == "deep":
            [len(item) for item in (lambda: [3])()]
        if how == "key":
            raise KeyError(text)
        raise ZeroDivisionError("division by zero")

    def run(self, run: Run) -> Outcome:
        return Outcome("ran")

    def apply(self, value: float) -> float:
        return value


def label(*, text: str) -> str:
    """Makes a text, which has many methods and is still no component."""
    Path("canary").touch()
    return text


class _Hidden(Shift):
    """A private class."""


def _inside() -> type[Shift]:
    class Made(Shift):
        """A class that has no name of its own."""

    return Made


made_inside = _inside()


class Unreadable(Shift):
    """As extension classes are: nothing can be learnt about its arguments."""

    __signature__ = "none"


class Opaque(str):
    """A kind of text of its own."""

    __slots__ = ()


class Unwritable:
    """Asks for what no text of a recipe becomes."""

    def __init__(self, *, code: Opaque | None = None) -> None:
        self.code = code

    def run(self, run: Run) -> Outcome:
        return Outcome("ran")


class Nested:
    """A component below which stands one of two kinds, and so on."""

    def __init__(self, *, below: "Nested | Stage | None" = None) -> None:
        self.below = below

    def run(self, run: Run) -> Outcome:
        return Outcome("ran")

    def apply(self, value: float) -> float:
        return value


class Shared:
    """Makes `num` files, which parts may share."""

    def __init__(self, *, num: int) -> None:
        self.num = num

    def run(self, run: Run) -> Outcome:
        missing = self._missing(run, range(self.num))
        return Outcome(f"made {self._make(run, missing)} of {self.num}", {"made": len(missing)})

    def needs(self, *, num_gpus: int | None = None, folder: Path | None = None) -> Needs:
        return Needs(rounds=1)

    def run_part(self, run: Run, part: JobShard) -> Outcome:
        own = [number for number in range(self.num) if part.has(str(number))]
        return Outcome(f"made {self._make(run, self._missing(run, own))}")

    def _missing(self, run: Run, numbers: Iterable[int]) -> list[int]:
        return [number for number in numbers if not (run.folder / "made" / str(number)).exists()]

    def _make(self, run: Run, numbers: list[int]) -> int:
        (run.folder / "made").mkdir(parents=True, exist_ok=True)
        for number in numbers:
            (run.folder / "made" / str(number)).touch()
        return len(numbers)
