"""Lists the cases of a parametrized test, of which `make soak` alone runs those that the others cover."""

from collections.abc import Iterable
from typing import Any

import pytest


def cases(every: Iterable[Any], often: Iterable[Any]) -> list[Any]:
    """Each of `every`; those that are not among `often` are left to `make soak`."""
    every, often = list(every), list(often)
    assert often and all(one in every for one in often), f"{often} should be among {every}"
    marked = ((one, () if one in often else pytest.mark.soak) for one in every)
    return [pytest.param(*(one if isinstance(one, tuple) else (one,)), marks=marks) for one, marks in marked]
