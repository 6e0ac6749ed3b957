"""Declares `Factory`: it builds an object later, with arguments that only its user has."""

from typing import ParamSpec, Protocol, TypeVar, runtime_checkable

P = ParamSpec("P")


T_co = TypeVar("T_co", covariant=True)


@runtime_checkable
class Factory(Protocol[P, T_co]):
    """Something that builds a T later. `Factory[[Params], Optimizer]` is called with the parameters.

    The arguments named in the brackets are given by position when the time comes; the recipe gives the others now.
    """

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T_co: ...
