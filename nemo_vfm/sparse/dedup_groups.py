"""Finds which features of a log change together, and how much storing their rows once would save.

Shape letter: B samples.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from nemo_vfm.sparse.jagged import Jagged, run_begins
from nemo_vfm.sparse.row_deduplication import row_changes


@dataclass(frozen=True, slots=True)
class ChangeStatistics:
    """How often features change inside of sessions."""

    samples_per_session: float  #: S, the mean
    #: d, the share of samples, but for the first of each session, in which none of the features changes
    unchanged: float

    @property
    def factor(self) -> float:
        """Samples a unique row of rows clustered by session: S / (1 + (S - 1)(1 - d)), RecD's formula.

        Each session stores its first row, and of the S - 1 others those that changed.
        """
        return self.samples_per_session / (1 + (self.samples_per_session - 1) * (1 - self.unchanged))


def change_statistics(features: Sequence[Jagged], session_B: Tensor) -> ChangeStatistics:
    """What is measured of these features taken together, as one group.

    Args:
        features: of each the rows of all B samples, in the order of the log.
        session_B: the session of each sample. One that is interrupted by another counts as several: what does not
            stand side by side cannot be found in a batch either.
    """
    return _statistics(row_changes(features), run_begins(session_B))


def choose_groups(
    features: Mapping[str, Jagged], session_B: Tensor, *, min_factor: float = 1.5, tolerance: float = 0.05
) -> dict[str, tuple[str, ...]]:
    """The groups worth deduplicating, by name: `groups: auto`.

    A feature whose own factor is below `min_factor` stays out. The others, those that change least first, join the
    group whose factor stays highest with them, if no member loses more than `tolerance` of its own factor and the
    group keeps `min_factor`; else they begin one. A group is named after its first feature.

    Args:
        session_B: see `change_statistics`.
        min_factor: samples a unique row at least.
        tolerance: a share, 0 to 1.
    """
    begins_B = run_begins(session_B)
    changes = {name: row_changes([feature]) for name, feature in features.items()}
    factors = {name: _statistics(changed, begins_B).factor for name, changed in changes.items()}
    groups: list[_OpenGroup] = []
    for name in sorted(factors, key=lambda one: -factors[one]):
        if factors[name] < min_factor:
            continue
        fitting: list[tuple[int, _OpenGroup]] = []
        for place, group in enumerate(groups):
            changed_B = group.changed_B | changes[name]
            factor = _statistics(changed_B, begins_B).factor
            if factor >= max(min_factor, (1 - tolerance) * group.best):
                fitting.append((place, _OpenGroup((*group.names, name), changed_B, factor, group.best)))
        if fitting:
            place, grown = max(fitting, key=lambda pair: pair[1].factor)
            groups[place] = grown
        else:
            groups.append(_OpenGroup((name,), changes[name], factors[name], factors[name]))
    return {group.names[0]: group.names for group in groups}


@dataclass(frozen=True, eq=False, slots=True)
class _OpenGroup:
    names: tuple[str, ...]
    changed_B: Tensor  #: whether any of the features differs from the sample before
    factor: float
    best: float  #: the highest factor that a member has alone: that of the first, since they come in this order


def _statistics(changed_B: Tensor, begins_B: Tensor) -> ChangeStatistics:
    if not len(begins_B):
        raise ValueError("there are no samples to measure features on; give at least one")
    sessions = int(begins_B.sum())
    pairs = len(begins_B) - sessions
    changes = int((changed_B & ~begins_B).sum())
    return ChangeStatistics(len(begins_B) / sessions, 1 - changes / pairs if pairs else 0.0)
