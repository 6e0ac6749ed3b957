"""Runs code at places of Lightning's loops that have no hook for callbacks."""

from collections.abc import Callable
from typing import Any


def around(
    owner: object, method: str, *, first: Callable[[], None] | None = None, then: Callable[[], None] | None = None
) -> None:
    """Let an object's method call one function before its own work, and one after it."""
    original = getattr(owner, method)

    def both(*args: Any, **kwargs: Any) -> Any:
        if first is not None:
            first()
        result = original(*args, **kwargs)
        if then is not None:
            then()
        return result

    setattr(owner, method, both)
