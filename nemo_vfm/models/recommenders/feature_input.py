"""Reads from a batch what every recommender reads: dense numbers, vectors of features, histories and their candidate.

Missing dense numbers (NaN) are refused, or become zeros with an indicator each. Histories are one jagged tensor of
vectors, on unique rows where these may be attended: what would then differ from computing on every sample is refused
unless allowed by name.

RecD (2211.05239) computes what depends on a group of features alone once a unique row, and expands the result to the
samples by the group's inverse. The loss and all gradients stay the same up to the order of sums. Each feature is looked
up on the unique rows of its group as far as the model was told.
Shape letters: B samples, F dense features, X dense numbers as read, R rows (B, or U unique ones), N values, D width of
a vector.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from nemo_vfm.core.errors import DataError
from nemo_vfm.core.types.model_traits import Op
from nemo_vfm.models.recommenders.ranker_layers import DropoutPlaces, RankerMLP, SampleDropout
from nemo_vfm.sparse.feature_batch import FeatureBatch
from nemo_vfm.sparse.jagged import Jagged
from nemo_vfm.sparse.tables.fused_tables import FusedTables
from nemo_vfm.sparse.tables.table_spec import DTYPES, TableSpec

Missing = Literal["refuse", "indicator"]
#: What duplicates would share although it is each sample's own.
Shared = Literal["dropout", "batch_norm", "foreign_features"]
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
        if not self.pooled and self.stage == "lookup":
            # The vectors of each sample, one after another: B rows, expanded without padding (RecD's O6).
            rows = Jagged(self.vectors, self.ids.lengths_B)
            rows = rows if self.inverse_B is None else rows.select(self.inverse_B)
            return sum_rows(rows.values_N, rows.lengths_B)
        bags = self.vectors if self.pooled else sum_rows(self.vectors, self.ids.lengths_B)
        return bags if self.inverse_B is None else bags.index_select(0, self.inverse_B)


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


@dataclass(frozen=True, eq=False)
class HistoryRows:
    """Histories, one after another, each with the oldest first."""

    vectors: Sequence[Jagged]  #: of each feature of the history, R rows of vectors, all of the same lengths
    times: Jagged | None  #: when each happened, R rows; None where the model does not ask
    inverse_B: Tensor | None  #: the row of each sample; None where there is a row a sample
    first_R: Tensor | None  #: the first sample that has each row; None where there is a row a sample
    places: DropoutPlaces  #: for dropout

    def of_rows(self, per_sample: Tensor) -> Tensor:
        """What each row's first sample has: (R, ...) of (B, ...)."""
        return per_sample if self.first_R is None else per_sample.index_select(0, self.first_R)

    def expand(self, per_row: Tensor) -> Tensor:
        """(B, ...) of (R, ...)."""
        return per_row if self.inverse_B is None else per_row.index_select(0, self.inverse_B)


@dataclass(frozen=True)
class HistoryInput:
    """What a model over histories reads."""

    #: dense numbers (B, X), and the bags (B, D) of each feature that is neither history nor candidate
    rest: Sequence[Tensor]
    candidates: Sequence[Tensor]  #: the bags (B, D) of the features that the histories are compared with
    rows: HistoryRows  #: the histories


@dataclass(frozen=True)
class FeatureInput:
    """How a model reads a batch; the weights are elsewhere."""

    dense: int  #: number of dense features
    missing: Missing  #: what a missing dense number is
    deduplicated: Mapping[str, Stage]  #: group of the batch -> up to where it is computed on its unique rows
    #: feature of the history -> feature of the candidate; empty where the model has no histories
    history: Mapping[str, str] = field(default_factory=dict)
    allow: Sequence[Shared] = ()  #: what samples of one row may share
    times: str | None = None  #: feature of the history's times, if the model reads them

    def __post_init__(self) -> None:
        if self.dense < 0:
            raise ValueError(f"dense must be 0 or more features, got {self.dense}")
        if self.missing not in ("refuse", "indicator"):
            raise ValueError(f"missing {self.missing!r}: use refuse or indicator")

    def dense_numbers(self, batch: FeatureBatch, dtype: torch.dtype) -> Tensor:
        """(B, X): the numbers, and behind them with `indicator` 1 where one is missing (NaN), else 0.

        An infinite number passes, and makes the step one that is not finite.
        """
        dense_BF = batch.dense_BF
        if dense_BF.shape[1] != self.dense:
            raise DataError(
                f"the batch has {dense_BF.shape[1]} dense features, and the model reads {self.dense} (dense)."
            )
        missing_BF = dense_BF.isnan()
        if self.missing == "indicator":
            return torch.cat([dense_BF.masked_fill(missing_BF, 0), missing_BF.to(dense_BF.dtype)], dim=1).to(dtype)
        # A program for other hosts cannot ask: there a missing number makes the score one that is none.
        if not torch.compiler.is_exporting() and bool(missing_BF.any()):
            sample, feature = missing_BF.nonzero()[0].tolist()
            raise DataError(
                f"dense feature {feature} of sample {sample} is missing (NaN), one of {int(missing_BF.sum())} in the "
                "batch. Fill them in before, or set the model's missing=indicator."
            )
        return dense_BF.to(dtype)

    def _look_up(self, tables: FusedTables, batch: FeatureBatch, dtype: torch.dtype) -> dict[str, FeatureVectors]:
        """The vectors of all features, in one lookup for all tables; groups that are not deduplicated are expanded."""
        require_groups(batch, self.deduplicated)
        rows: dict[str, tuple[Jagged, str | None]] = {}
        for name in features_of(tables.tables.values()):
            own, group = feature_rows(batch, name)
            if group is not None and group not in self.deduplicated:
                own, group = own.select(batch.groups[group].inverse_B), None
            rows[name] = own, group
        vectors = tables.lookup({name: ids for name, (ids, _) in rows.items()})
        pooled = {feature for spec in tables.tables.values() if spec.pooling != "sequence" for feature in spec.features}
        return {
            name: FeatureVectors(
                vectors[name].to(dtype), ids, group, None if group is None else batch.groups[group].inverse_B,
                "lookup" if group is None else self.deduplicated[group], name in pooled,
            )
            for name, (ids, group) in rows.items()
        }  # fmt: skip

    def bags(self, tables: FusedTables, batch: FeatureBatch, dtype: torch.dtype) -> list[Tensor]:
        """Of all features of the tables, (B, D) each."""
        return [vectors.bags() for vectors in self._look_up(tables, batch, dtype).values()]

    def histories(self, tables: FusedTables, batch: FeatureBatch, dtype: torch.dtype) -> HistoryInput:
        """What a model over histories reads: the unique rows of the first one's group if that is to be attended."""
        found = self._look_up(tables, batch, dtype)
        first = found[next(iter(self.history))]
        group = first.group if first.stage == "attend" else None
        inverse_B = None if group is None else batch.groups[group].inverse_B
        first_R = None if inverse_B is None else first_samples(inverse_B, len(first.ids))
        taken = {name: (Jagged(found[name].vectors, found[name].ids.lengths_B), found[name].group)
                 for name in self.history}  # fmt: skip
        if self.times is not None:
            taken[self.times] = feature_rows(batch, self.times)
        # With `foreign_features`, features from outside of the group are taken of a row's first sample.
        allowed = "foreign_features" in self.allow
        rows = {name: _rows(batch, name, own, of, group, first_R, allowed) for name, (own, of) in taken.items()}
        shown, *others = rows
        for name in others:
            if not torch.compiler.is_exporting() and not torch.equal(rows[shown].lengths_B, rows[name].lengths_B):
                raise DataError(f"{shown} and {name} are features of one history, and their lengths differ.")
        ids_R = batch.ids_B if first_R is None else batch.ids_B.index_select(0, first_R)
        bags = [found[name].bags() for name in other_features(tables.tables, self.history)]
        return HistoryInput(
            [self.dense_numbers(batch, dtype), *bags],
            [found[name].bags() for name in self.history.values()],
            HistoryRows(
                [rows[name] for name in self.history], None if self.times is None else rows[self.times], inverse_B,
                first_R, DropoutPlaces(ids_R, batch.index),
            ),
        )  # fmt: skip

    def ops(self, tables: FusedTables, inputs: Mapping[str, tuple[int, ...]], *perceptrons: RankerMLP) -> list[Op]:
        """The lookups, and the arithmetic of perceptrons that run once a sample.

        One lookup a table, in bytes of rows read; each id counts, also one that comes again. If groups are not looked
        up on unique rows, their ids count as often as a mean row of them repeats: the shapes (of a group's feature
        those of its unique rows) do not say how often each does.
        """
        samples, on_unique_rows = inputs["dense_BF"][0], bool(self.deduplicated)
        found = []
        for name, spec in tables.tables.items():
            ids = sum(ids_read(inputs, feature, samples, on_unique_rows) for feature in spec.features)
            found.append(Op("lookup", 0.0, f"table {name}", bytes=ids * spec.width * DTYPES[spec.dtype].itemsize))
        flops = sum(one.flops(samples) for one in perceptrons)
        return [*found, Op("linear", flops, "perceptrons" if len(perceptrons) > 1 else "perceptron")]

    def attention_sizes(self, inputs: Mapping[str, tuple[int, ...]]) -> tuple[float, float]:
        """(rows, items) of the histories that attention runs over, see `ops`."""
        feature, on_unique_rows = next(iter(self.history)), "attend" in self.deduplicated.values()
        samples = inputs["dense_BF"][0]
        rows = inputs.get(f"{feature}.lengths", (samples,))[0] if on_unique_rows else samples
        return float(rows), ids_read(inputs, feature, samples, on_unique_rows)


def features_of(specs: Iterable[TableSpec]) -> tuple[str, ...]:
    """All features that the tables look up, table by table."""
    return tuple(feature for spec in specs for feature in spec.features)


def other_features(specs: Mapping[str, TableSpec], histories: Mapping[str, str]) -> tuple[str, ...]:
    """The features that are neither histories nor what these are compared with."""
    if not histories:
        raise ValueError("history is empty; name at least one feature of a history and the one it is compared with")
    return tuple(name for name in features_of(specs.values()) if name not in {*histories, *histories.values()})


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


def require_shareable(part: nn.Module, deduplicated: Mapping[str, Stage], allow: Sequence[Shared]) -> None:
    """Check the part of a model that attends, if a group is attended on its unique rows.

    Dropout would drop alike in all samples of a row, and batch norm would count a row once that many samples have.
    """
    if unknown := [name for name in allow if name not in get_args(Shared)]:
        raise ValueError(f"allow names {unknown[0]!r}; it can be {', '.join(get_args(Shared))}")
    attended = [group for group, stage in deduplicated.items() if stage == "attend"]
    dropouts = nn.modules.dropout._DropoutNd | nn.AlphaDropout | SampleDropout
    shared = {"dropout": any(isinstance(one, dropouts) and one.p > 0 for one in part.modules()),
              "batch_norm": any(isinstance(one, _BatchNorm) for one in part.modules())}  # fmt: skip
    for name, is_there in shared.items() if attended else ():
        if name not in allow and is_there:
            raise ValueError(
                f"deduplicated.{attended[0]} is 'attend', but the attention has {name}, which samples of one row would "
                f"share: the result differs from that without deduplication. Remove it, use 'pool', or allow: [{name}]"
            )


def require_bottom(bottom: Sequence[int], dense: int, width: int) -> None:
    """Check the settings of a perceptron over dense numbers whose output stands among the vectors of features."""
    if not dense and bottom:
        raise ValueError(f"there are no dense features for a bottom perceptron {list(bottom)}; set bottom to []")
    if dense and (not bottom or bottom[-1] != width):
        raise ValueError(
            f"the bottom perceptron {list(bottom)} of {dense} dense features must give a vector of width {width}, "
            "like a table; the last of bottom is width"
        )


def dense_size(dense: int, missing: Missing) -> int:
    """X: F, or twice as many with indicators."""
    return dense * (2 if missing == "indicator" else 1)


def ids_read(inputs: Mapping[str, tuple[int, ...]], feature: str, samples: int, on_unique_rows: bool) -> float:
    """How many ids of a feature are looked up, see `FeatureInput.ops`; 0 of one that is not in the batch."""
    (values,), (rows,) = inputs.get(f"{feature}.values", (0,)), inputs.get(f"{feature}.lengths", (samples,))
    return float(values) if on_unique_rows or not rows else values * samples / rows
