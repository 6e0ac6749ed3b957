"""Defines what decides whether a row that a pipeline has made is kept."""

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from nemo_vfm.synth.programs.row_program import AsksModels, Candidate, Draft, Dropped, Program


@runtime_checkable
class RowFilter(Protocol):
    """Looks at one row by itself."""

    def broken_rule(self, draft: Draft) -> str | None:
        """Which rule the row breaks, in a few words that rows share; None where it breaks none."""
        ...


@runtime_checkable
class AskingFilter(AsksModels, Protocol):
    """Asks a model about one row."""

    def rule_program(self, draft: Draft) -> Program[str | None]:
        """As `RowFilter.broken_rule`."""
        ...


@runtime_checkable
class OrderedFilter(Protocol):
    """Compares a row with those before it."""

    def opened(self) -> Callable[[Draft], str | None]:
        """For one run: called with rows in their order, it says which rule a row breaks. It may keep what it passes."""
        ...


Filter = RowFilter | AskingFilter | OrderedFilter


def filtered(candidate: Candidate, filters: Sequence[Filter]) -> Program[Draft | Dropped]:
    """The candidate's row, dropped where it breaks a rule that needs no other row."""
    result = yield from candidate.row()
    for one in filters:
        rule = None
        if isinstance(result, Dropped):
            break
        if isinstance(one, RowFilter):
            rule = one.broken_rule(result)
        elif isinstance(one, AskingFilter):
            rule = yield from one.rule_program(result)
        if rule:
            result = Dropped(rule)
    return result


class RowOrder:
    """Puts results in their order, and drops rows by the filters that need it.

    Args:
        filters: all of the run; those that need no order are left out.
    """

    def __init__(self, filters: Sequence[Filter]) -> None:
        self._rules = [one.opened() for one in filters if isinstance(one, OrderedFilter)]

    def decided(self, draft: Draft) -> Draft | Dropped:
        """The next row in order."""
        for rule in self._rules:
            if broken := rule(draft):
                return Dropped(broken)
        return draft
