"""Gathers the histories of a batch as one jagged tensor of vectors, on unique rows where these may be attended.

Shape letters: B samples, R rows (B, or U unique ones), N values, D width.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nemo_vfm.core.errors import DataError
from nemo_vfm.models.recommenders.feature_vectors import FeatureVectors, feature_rows
from nemo_vfm.models.recommenders.sample_dropout import DropoutPlaces
from nemo_vfm.models.recommenders.shared_rows import Shared
from nemo_vfm.sparse.feature_batch import FeatureBatch
from nemo_vfm.sparse.jagged import Jagged


@dataclass(frozen=True, eq=False)
class HistoryRows:
    """Histories, one after another, each with the oldest first.

    Args:
        vectors: of each feature of the history, R rows of vectors, all of the same lengths.
        times: when each happened, R rows; None where the model does not ask.
        inverse_B: the row of each sample; None where there is a row a sample.
        first_R: the first sample that has each row; None where there is a row a sample.
        places: for dropout.
    """

    vectors: Sequence[Jagged]
    times: Jagged | None
    inverse_B: Tensor | None
    first_R: Tensor | None
    places: DropoutPlaces

    @property
    def added(self) -> Jagged:
        """The sum of the features' vectors at each place."""
        return Jagged(torch.stack([rows.values_N for rows in self.vectors]).sum(0), self.vectors[0].lengths_B)

    @property
    def joined(self) -> Jagged:
        """The features' vectors at each place, one behind the other."""
        return Jagged(torch.cat([rows.values_N for rows in self.vectors], dim=1), self.vectors[0].lengths_B)

    def of_rows(self, per_sample: Tensor) -> Tensor:
        """What each row's first sample has: (R, ...) of (B, ...)."""
        return per_sample if self.first_R is None else per_sample.index_select(0, self.first_R)

    def expand(self, per_row: Tensor) -> Tensor:
        """(B, ...) of (R, ...)."""
        return per_row if self.inverse_B is None else per_row.index_select(0, self.inverse_B)


def history_rows(
    batch: FeatureBatch, found: Mapping[str, FeatureVectors], histories: Sequence[str], times: str | None,
    allow: Sequence[Shared],
) -> HistoryRows:  # fmt: skip
    """The histories of a batch; the unique rows of the first one's group if that is to be attended.

    Args:
        found: vectors of at least the histories.
        histories: names of the features of one history.
        times: name of the feature of its times.
        allow: with `foreign_features`, features from outside of the group are taken of a row's first sample.

    Raises:
        DataError: lengths differ, or a feature is from outside of the group that is attended on unique rows.
    """
    group = found[histories[0]].group if found[histories[0]].stage == "attend" else None
    inverse_B = None if group is None else batch.groups[group].inverse_B
    first_R = None if inverse_B is None else first_samples(inverse_B, len(found[histories[0]].ids))
    taken = {name: (Jagged(found[name].vectors, found[name].ids.lengths_B), found[name].group) for name in histories}
    if times is not None:
        taken[times] = feature_rows(batch, times)
    rows = {
        name: _rows(batch, name, rows, own, group, first_R, "foreign_features" in allow)
        for name, (rows, own) in taken.items()
    }
    _require_equal_lengths(rows)
    ids_R = batch.ids_B if first_R is None else batch.ids_B.index_select(0, first_R)
    return HistoryRows(
        [rows[name] for name in histories], None if times is None else rows[times], inverse_B, first_R,
        DropoutPlaces(ids_R, batch.index),
    )  # fmt: skip


def first_samples(inverse_B: Tensor, rows: int) -> Tensor:
    """The first sample that has each unique row: int64, (R,)."""
    sample_B = torch.arange(len(inverse_B), device=inverse_B.device)
    last = torch.full((rows,), len(inverse_B) - 1, device=inverse_B.device)
    return last.scatter_reduce_(0, inverse_B, sample_B, "amin")


def _rows(
    batch: FeatureBatch, name: str, rows: Jagged, own: str | None, group: str | None, first_R: Tensor | None,
    allowed: bool,
) -> Jagged:  # fmt: skip
    if first_R is not None and own == group:
        return rows
    per_sample = rows if own is None else rows.select(batch.groups[own].inverse_B)
    if first_R is None:
        return per_sample
    if not allowed:
        raise DataError(
            f"the history is attended on the unique rows of the group {group!r}, and its feature {name!r} is from "
            f"outside of that group. Put it into the group, or use 'pool'; allow: [foreign_features] takes it of a "
            "row's first sample, which gives another result."
        )
    return per_sample.select(first_R)


def _require_equal_lengths(rows: Mapping[str, Jagged]) -> None:
    first, *others = rows
    for name in others:
        if not torch.compiler.is_exporting() and not torch.equal(rows[first].lengths_B, rows[name].lengths_B):
            raise DataError(f"{first} and {name} are features of one history, and their lengths differ.")
