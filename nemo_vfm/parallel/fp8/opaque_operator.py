"""Makes a function of tensors one operator to `torch.compile`, which then needs to understand nothing inside it."""

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")


def opaque(name: str, like: Callable[..., Any]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function that writes to none of its arguments and returns none of them.

    Outside a compiled graph it is called as it is: an operator costs some 20 us a call.

    Args:
        name: of the operator.
        like: of the same arguments, makes tensors of the shapes and dtypes that it returns.
    """

    def decorated(function: Callable[P, R]) -> Callable[P, R]:
        operator = torch.library.custom_op(f"nemo_vfm::{name}", function, mutates_args=())
        operator.register_fake(like)

        @wraps(function)
        def call(*arguments: P.args, **named: P.kwargs) -> R:
            if torch.compiler.is_compiling():
                return operator(*arguments, **named)  # type: ignore[no-any-return]
            return function(*arguments, **named)

        call.operator = operator  # type: ignore[attr-defined]
        return call

    return decorated
