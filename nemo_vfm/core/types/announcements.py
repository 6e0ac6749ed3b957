"""Passes announcements from rank 0 to the other ranks, by whoever can reach them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from nemo_vfm.core.types.job import Run

_TELLERS: list["Teller"] = []


class Teller(Protocol):
    """Whoever can reach the other ranks."""

    def tell(self, run: Run) -> None:
        """All ranks now do the job of this run's folder."""
        ...


def announce(run: Run) -> None:
    """Tell the other ranks, where there are any, that the job of this folder begins."""
    for teller in _TELLERS:
        teller.tell(run)


@contextmanager
def heard_by(teller: Teller) -> Iterator[None]:
    """What is announced inside the block reaches this one."""
    _TELLERS.append(teller)
    try:
        yield
    finally:
        _TELLERS.remove(teller)
