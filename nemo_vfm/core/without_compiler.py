"""Keeps torch from importing its compiler where nothing is compiled.

Torch's optimizers, and many operations on the meta device, import `torch._dynamo` only to exclude themselves from it.
That takes a second of CPU, a third of what a plan for a thousand GPUs may take (torch 2.13, 2026-11).
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, TypeVar

import torch
from torch.utils._python_dispatch import _disable_current_modes

_NAME = "torch._dynamo"
F = TypeVar("F", bound=Callable[..., Any])


class _StandIn(ModuleType):
    """Stands in for `torch._dynamo`, and imports the real module as soon as more of it is needed."""

    def __init__(self) -> None:
        super().__init__(_NAME)
        self.untouched: list[Callable[..., Any]] = []

    def disable(self, function: F, *_: object, **__: object) -> F:
        """Nothing compiles it."""
        self.untouched.append(function)
        return function

    def graph_break(self) -> None:
        """There is no graph."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        _remove(self)
        with _disable_current_modes():  # tensors that it makes for itself are nobody's business
            import torch._dynamo as compiler

        return getattr(compiler, name)


@contextmanager
def without_compiler() -> Iterator[None]:
    """Let torch believe that its compiler is imported. Where it is already nothing changes.

    Afterwards all is as it was before.
    """
    if _NAME in sys.modules:
        yield
        return
    stand_in: Any = _StandIn()
    package: Any = torch
    sys.modules[_NAME] = package._dynamo = stand_in
    try:
        yield
    finally:
        _remove(stand_in)


def _remove(stand_in: _StandIn) -> None:
    package: Any = torch
    if sys.modules.get(_NAME) is stand_in:
        del sys.modules[_NAME]
    if vars(package).get("_dynamo") is stand_in:
        del package._dynamo
    for function in stand_in.untouched:  # torch asks once, and remembers the answer here
        vars(function).pop("__dynamo_disable", None)
