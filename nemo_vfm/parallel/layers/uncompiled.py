"""Marks a function that torch.compile calls without tracing into it."""

import sys
from collections.abc import Callable
from functools import cache, wraps
from typing import Any, ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")
_disable_compiler: Callable[..., Any] = cache(torch.compiler.disable)


def uncompiled(function: Callable[P, R]) -> Callable[P, R]:
    """`torch.compiler.disable`, whose compiler takes 2 s to import, for processes that compile nothing too."""

    @wraps(function)
    def call(*arguments: P.args, **named: P.kwargs) -> R:
        chosen: Callable[P, R] = _disable_compiler(function) if "torch._dynamo" in sys.modules else function
        return chosen(*arguments, **named)

    call._torchdynamo_disable = True  # type: ignore[attr-defined]  # the compiler's own mark: it breaks the graph here
    return call
