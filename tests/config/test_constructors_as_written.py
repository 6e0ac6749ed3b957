"""Tests that classes under `--trust` are built of recipes as their authors wrote them, and no other class is."""

import argparse
import functools
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Self, Tuple, Union  # noqa: UP035  (as people write them)

import pytest
import torch
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from torch import nn

from nemo_vfm.config import RecipeError, build, check, trust_list
from nemo_vfm.core.types.job import Outcome, Run

if TYPE_CHECKING:
    from elsewhere import Absent

TRUST = trust_list([__name__, "torch.nn"])
SGD = "{_target_: torch.optim.SGD, lr: 0.5, _partial_: true}"
STEP = "{_target_: torch.optim.lr_scheduler.StepLR, step_size: 3, _partial_: true}"
MSE = "{_target_: torch.nn.MSELoss}"


class Holder:
    """A job of somebody's, whose slot takes anything."""

    def __init__(self, made):  # type: ignore[no-untyped-def]
        self.made = made

    def run(self, run: Run) -> Outcome:
        return Outcome("ran")


class Untyped:
    def __init__(self, net, lr=0.1):  # type: ignore[no-untyped-def]
        self.got, self.lr = net, lr


class AnyTyped:
    def __init__(self, net: Any, more: object = None) -> None:
        self.got = net


class Keywords:
    def __init__(self, **kwargs: Any) -> None:
        self.got = kwargs


class PassedOn(Keywords):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)


class Makes:
    def __init__(self, make: Callable[..., nn.Module]) -> None:
        self.got = make


class Lightnings:
    def __init__(self, optimizer: OptimizerCallable, scheduler: LRSchedulerCallable = None) -> None:  # type: ignore[assignment]
        self.got = optimizer, scheduler


class Template:
    """As in the Hydra template: two objects are annotated, and two partials are meant, one by its module."""

    def __init__(
        self, net: nn.Module, optimizer: torch.optim.Optimizer, scheduler: torch.optim.lr_scheduler, compile: bool  # type: ignore[valid-type]
    ) -> None:  # fmt: skip
        self.got = net, optimizer, scheduler, compile


class Unresolvable:
    def __init__(self, data: "Absent", width: int = 8) -> None:
        self.got = data, width


class Misannotated:
    def __init__(self, shape: "torch.nn", size: (int, int), gain: 1.0 = 2.0) -> None:  # type: ignore[syntax,valid-type]
        self.got = shape, size, gain


class Nulls:
    def __init__(self, width: int = None, net: nn.Module = None, names: List[str] = None) -> None:  # type: ignore[assignment]  # noqa: RUF013, UP006
        self.got = width, net, names


class Spaced:
    def __init__(self, hparams: Namespace, args: argparse.Namespace | None = None) -> None:
        self.got = hparams


class FromMethod:
    def __init__(self, width: int) -> None:
        self.got = width

    @classmethod
    def sized(cls, size: str):  # type: ignore[no-untyped-def]
        return cls({"small": 8}[size])

    @classmethod
    def doubled(cls, width: int) -> Self:
        return cls(2 * width)

    def method(self) -> None: ...


class Positioned:
    def __init__(self, width: int, height: int, /, depth: int = 1, *, flag: bool = False) -> None:
        self.got = width, height, depth, flag


class Stack:
    def __init__(self, *layers: nn.Module) -> None:
        self.got = layers


class Losses:
    def __init__(self, loss: Callable, act: Optional[Callable[[torch.Tensor], torch.Tensor]] = None) -> None:  # type: ignore[type-arg]  # noqa: UP045
        self.got = loss, act


class Nested:
    def __init__(self, parts: Dict[str, Any], chain: List[Any], pair: Tuple[Any, int] = (None, 1)) -> None:  # noqa: UP006
        self.got = parts, chain, pair


class Either:
    def __init__(self, net: Union[str, nn.Module], optimizer: functools.partial[torch.optim.Optimizer]) -> None:  # noqa: UP007
        self.got = net, optimizer


@dataclass
class Data:
    got: Any
    hidden: List[Callable[..., Any]] = None  # type: ignore[assignment]  # noqa: UP006


def made(width):  # type: ignore[no-untyped-def]
    return FromMethod(width)


def squared(value: torch.Tensor, by: float = 2.0) -> float:
    return float(value**by)


#: What is written for one constructor, and whether it was given what was meant.
TABLE: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "untyped": (f"{{_target_: @Untyped, net: {MSE}}}", lambda got: isinstance(got, nn.MSELoss)),
    "untyped, a value": ("{_target_: @Untyped, net: [1, {a: b}]}", lambda got: got == [1, {"a": "b"}]),
    "Any": (f"{{_target_: @AnyTyped, net: {MSE}}}", lambda got: isinstance(got, nn.MSELoss)),
    "Any, within a list": (f"{{_target_: @AnyTyped, net: [1, {{a: {MSE}}}]}}",
                           lambda got: got[0] == 1 and isinstance(got[1]["a"], nn.MSELoss)),
    "keywords": (f"{{_target_: @Keywords, a: {MSE}, b: 2}}",
                 lambda got: isinstance(got["a"], nn.MSELoss) and got["b"] == 2),
    "keywords passed on": (f"{{_target_: @PassedOn, a: {SGD}}}", lambda got: got["a"].func is torch.optim.SGD),
    "Callable[..., X]": ("{_target_: @Makes, make: {_target_: torch.nn.Linear, in_features: 2, _partial_: true}}",
                         lambda got: got(out_features=3).weight.shape == (3, 2)),
    "OptimizerCallable": (f"{{_target_: @Lightnings, optimizer: {SGD}, scheduler: {STEP}}}",
                          lambda got: [one.keywords for one in got] == [{"lr": 0.5}, {"step_size": 3}]),
    "OptimizerCallable, null": (f"{{_target_: @Lightnings, optimizer: {SGD}, scheduler: null}}",
                                lambda got: got[1] is None),
    "an Optimizer and a module": (
        f"{{_target_: @Template, net: {MSE}, optimizer: {SGD}, scheduler: {STEP}, compile: false}}",
        lambda got: all(type(one) is functools.partial for one in got[1:3]) and got[3] is False),
    "a module, null": (f"{{_target_: @Template, net: {MSE}, optimizer: {SGD}, scheduler: null, compile: false}}",
                       lambda got: got[2] is None),
    "no type": (f"{{_target_: @Unresolvable, data: {MSE}}}", lambda got: isinstance(got[0], nn.MSELoss)),
    "a function, a tuple and a number": ("{_target_: @Misannotated, shape: [1, 2], size: 3, gain: 4}",
                                         lambda got: got == ([1, 2], 3, 4)),
    "None for any type": ("{_target_: @Nulls, width: null, net: null, names: null}", lambda got: got == (None,) * 3),
    "Namespace": ("{_target_: @Spaced, hparams: {lr: 0.1, dims: [1, 2]}, args: {}}",
                  lambda got: got == Namespace(lr=0.1, dims=[1, 2])),
    "a class method": ("{_target_: @FromMethod.sized, size: small}", lambda got: got == 8),
    "a class method to Self": ("{_target_: @FromMethod.doubled, width: 4}", lambda got: got == 8),
    "a function": ("{_target_: @made, width: 8}", lambda got: got == 8),
    "by position": ("{_target_: @Positioned, _args_: [1, 2, 3], flag: true}", lambda got: got == (1, 2, 3, True)),
    "any number by position": (f"{{_target_: @Stack, _args_: [{MSE}, {MSE}]}}",
                               lambda got: [type(one) for one in got] == [nn.MSELoss] * 2),
    "Callable, made or called later": (
        f"{{_target_: @Losses, loss: {MSE}, act: {{_target_: @squared, by: 3.0, _partial_: true}}}}",
        lambda got: isinstance(got[0], nn.MSELoss) and got[1](torch.tensor(2.0)) == 8),
    "Any within containers": (f"{{_target_: @Nested, parts: {{a: {MSE}}}, chain: [{SGD}], pair: [{MSE}, 2]}}",
                              lambda got: isinstance(got[0]["a"], nn.MSELoss) and callable(got[1][0])),
    "Union and partial[X]": (f"{{_target_: @Either, net: {MSE}, optimizer: {SGD}}}",
                             lambda got: isinstance(got[0], nn.MSELoss) and got[1].keywords == {"lr": 0.5}),
    "a dataclass": (f"{{_target_: @Data, got: {SGD}, hidden: [{SGD}]}}", lambda got: got.func is torch.optim.SGD),
}  # fmt: skip


def recipe(text: str) -> str:
    """A job that holds what a text describes."""
    return f"_target_: @Holder\nmade: {text}".replace("@", f"{__name__}.")


@pytest.mark.parametrize(("text", "is_meant"), TABLE.values(), ids=TABLE)
def test_a_constructor_gets_what_its_author_meant(kitchen, text, is_meant):
    assert len(TABLE) == 24
    job: Any = build(kitchen.compose(recipe(text)), TRUST)
    assert is_meant(job.made.got)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{_target_: @Untyped, net: 1, lr: fast}", "expected a number"),
        ("{_target_: @Untyped, net: {_target_: json.loads, s: '1'}}", "json.loads is not trusted"),
        ("{_target_: @Unresolvable, data: 1, width: wide}", "expected a whole number, got"),
        ("{_target_: @Makes, make: {_target_: torch.nn.Linear}}", "Linear needs in_features"),
        ("{_target_: @Makes, make: {_target_: torch.optim.SGD, lr: 1, _partial_: true}}", "SGD is not a Module"),
        ("{_target_: @Lightnings, optimizer: {_target_: torch.optim.SGD}}", "with _partial_: true it is called later"),
        ("{_target_: @Lightnings, optimizer: {_target_: torch.optim.SGD, _partial_: 1}}", "expected true or false"),
        ("{_target_: @Lightnings, optimizer: {_target_: torch.optim.SGD, rl: 1, _partial_: true}}", "no argument rl"),
        ("{_target_: @FromMethod.method}", "there is no module"),
        ("{_target_: @FromMethod.sized.size}", "there is no module"),
        ("{_target_: @argparse.Namespace, a: 1}", "there is no module"),
        ("{_target_: @Namespace, a: 1}", "is defined as argparse.Namespace, which is not trusted"),
        ("{_target_: @Positioned, _args_: [1, 2, 3, 4]}", "takes at most 3 positional arguments, got 4"),
        ("{_target_: @Positioned, _args_: 1}", "expected a list, got the number 1"),
        ("{_target_: @Positioned, _args_: [1]}", "Positioned needs height"),
        ("{_target_: @Positioned, _args_: [1, two]}", 'expected a whole number, got the text "two"'),
        ("{_target_: @Positioned, _args_: [1, 2], width: 1}", "width is passed to Positioned by _args_; remove it"),
        ("{_target_: @Nulls, width: wide}", "expected a whole number, got"),
    ],
)
def test_what_no_constructor_could_take_is_still_refused(kitchen, text, words):
    problems = check(kitchen.compose(recipe(text)), TRUST)
    assert words in "\n".join(problem.render() for problem in problems)


def test_parts_of_what_is_called_later_are_made_once_and_the_same_for_each_call(kitchen):
    text = f"{{_target_: @Makes, make: {{_target_: @Untyped, net: {MSE}, _partial_: true}}}}"
    with pytest.raises(RecipeError, match="Untyped is not a Module"):
        build(kitchen.compose(recipe(text)), TRUST)
    job: Any = build(kitchen.compose(recipe(text.replace("@Makes, make", "@AnyTyped, net"))), TRUST)
    assert job.made.got().got is job.made.got().got
