"""Looks up the features of a batch, each on the unique rows of its group as far as the model was told (RecD).

RecD (2211.05239) computes what depends on a group of features alone once a unique row, and expands the result to the
samples by the group's inverse. The loss and all gradients stay the same up to the order of sums.
Shape letters: B samples, R rows of a feature (B, or U unique ones), N values, D width.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal, get_args

import torch
from torch import Tensor

from nemo_vfm.core.errors import DataError
from nemo_vfm.sparse.feature_batch import FeatureBatch
from nemo_vfm.sparse.jagged import Jagged
from nemo_vfm.sparse.tables.fused_tables import FusedTables

#: Up to where a group is computed on its unique rows; each has the ones before it.
Stage = Literal["lookup", "pool", "attend"]
STAGES: tuple[Stage, ...] = get_args(Stage)


@dataclass(frozen=True, eq=False)
class FeatureVectors:
    """The vectors of a feature."""

    vectors: Tensor  #: (R, D) where its table pools, (N, D) where the table gives sequences
    ids: Jagged  #: the R rows that were looked up
    group: str | None  #: of the batch, whose unique rows these are; None where there is a row a sample
    inverse_B: Tensor | None  #: the row of each sample; None where there is a row a sample
    stage: Stage  #: up to where unique rows stay
    pooled: bool  #: whether its table pools

    def bags(self) -> Tensor:
        """The sum of each sample's vectors, or what its table pooled: (B, D), zeros for a sample without ids."""
        if self.pooled:
            return self.expand(self.vectors)
        if self.stage == "lookup":
            # The vectors of each sample, one after another: B rows, expanded without padding (RecD's O6).
            rows = Jagged(self.vectors, self.ids.lengths_B)
            rows = rows if self.inverse_B is None else rows.select(self.inverse_B)
            return sum_rows(rows.values_N, rows.lengths_B)
        return self.expand(sum_rows(self.vectors, self.ids.lengths_B))

    def expand(self, rows: Tensor) -> Tensor:
        """Row by row what was computed of this feature, as (B, ...)."""
        return rows if self.inverse_B is None else rows.index_select(0, self.inverse_B)


def look_up(
    tables: FusedTables, batch: FeatureBatch, names: Sequence[str], deduplicated: Mapping[str, Stage],
    dtype: torch.dtype = torch.float32,
) -> dict[str, FeatureVectors]:  # fmt: skip
    """The vectors of these features, in one lookup for all tables.

    Args:
        names: of features; others of the batch are left alone.
        deduplicated: of groups, up to where they are computed on unique rows; groups that it lacks are expanded first.
        dtype: of the vectors.
    """
    require_groups(batch, deduplicated)
    rows: dict[str, tuple[Jagged, str | None]] = {}
    for name in names:
        own, group = feature_rows(batch, name)
        if group is not None and group not in deduplicated:
            own, group = own.select(batch.groups[group].inverse_B), None
        rows[name] = own, group
    vectors = tables.lookup({name: ids for name, (ids, _) in rows.items()})
    pooled = {feature for spec in tables.tables.values() if spec.pooling != "sequence" for feature in spec.features}
    return {
        name: FeatureVectors(
            vectors[name].to(dtype), ids, group, None if group is None else batch.groups[group].inverse_B,
            "lookup" if group is None else deduplicated[group], name in pooled,
        )
        for name, (ids, group) in rows.items()
    }  # fmt: skip


def require_groups(batch: FeatureBatch, deduplicated: Mapping[str, Stage]) -> None:
    """Refuse a batch whose groups have other names; one without groups is as good, and costs more."""
    if batch.groups and (unknown := [name for name in deduplicated if name not in batch.groups]):
        raise DataError(f"deduplicated names the group {unknown[0]!r}: {_hint(unknown[0], batch.groups)}")


def require_stages(deduplicated: Mapping[str, Stage], most: Stage, why: str) -> None:
    """Refuse what a model cannot compute on unique rows."""
    for group, stage in deduplicated.items():
        if stage not in STAGES:
            raise ValueError(f"deduplicated.{group} is {stage!r}; it can be {', '.join(STAGES)}")
        if STAGES.index(stage) > STAGES.index(most):
            raise ValueError(f"deduplicated.{group} is {stage!r}, but {why}; use {most!r}")


def sum_rows(values_ND: Tensor, lengths_R: Tensor) -> Tensor:
    """The sum of each row's values, (R, D); zeros where a row has none."""
    return torch.segment_reduce(values_ND, "sum", lengths=lengths_R, axis=0, unsafe=True)


def feature_rows(batch: FeatureBatch, name: str) -> tuple[Jagged, str | None]:
    """A feature's rows as the batch has them, and the group whose unique rows these are."""
    if name in batch.features:
        return batch.features[name], None
    for group, rows in batch.groups.items():
        if name in rows.features:
            return rows.features[name], group
    known = [*batch.features, *(feature for group in batch.groups.values() for feature in group.features)]
    raise DataError(f"the batch has no feature {name!r}, which the model reads: {_hint(name, known)}")


def _hint(name: str, known: Sequence[str] | Mapping[str, object]) -> str:
    near = get_close_matches(name, list(known), n=1)
    return f"did you mean {near[0]!r}?" if near else f"there are {', '.join(sorted(known)) or 'none'}."
