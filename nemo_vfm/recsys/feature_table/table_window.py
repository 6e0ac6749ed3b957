"""Reads some row groups of a table as one large batch, in any order, of which batches are cut.

Shape letters: B samples, F dense features, U unique rows, N values, M samples of the window.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from nemo_vfm.core.errors import DataError
from nemo_vfm.data.batching.faults import Fault
from nemo_vfm.recsys.feature_table.stored_rows import StoredRows
from nemo_vfm.recsys.feature_table.table_reader import FeatureTable
from nemo_vfm.sparse.deduped_group import DedupedGroup
from nemo_vfm.sparse.feature_batch import FeatureBatch
from nemo_vfm.sparse.jagged import Jagged
from nemo_vfm.sparse.log_chunk import LogChunk
from nemo_vfm.sparse.row_deduplication import deduplicate

#: What an id that is no row of its table does: stop the run, or take the weight of its sample.
OutOfRange = Literal["stop", "weight_0"]


@dataclass(frozen=True, eq=False, slots=True)
class TableWindow:
    """Samples in the order of training."""

    batch: FeatureBatch  #: all of them
    faults: Mapping[int, Fault] = field(default_factory=dict)  #: what is wrong with samples, by their places

    def rows(self, begin: int, end: int) -> tuple[FeatureBatch, list[Fault | None]]:
        """The samples begin..end, and what is wrong with each."""
        faults: list[Fault | None] = [None] * (end - begin)
        for place in [place for place in self.faults if begin <= place < end]:
            faults[place - begin] = self.faults[place]
        return self.batch.rows(begin, end), faults


@dataclass(frozen=True, slots=True)
class WindowReader:
    """What is read of a table, and how."""

    table: FeatureTable
    dense: Sequence[str]
    labels: Sequence[str]
    features: Sequence[str]
    groups: Mapping[str, Sequence[str]]  #: groups of features that batches hold deduplicated, by name
    num_rows: Mapping[str, int]  #: of features, the rows of their tables; ids of the others are not checked
    out_of_range: OutOfRange
    item_times: Sequence[str] = ()  #: features with the times of items, none of which may be after its sample's

    def load_row_groups(self, row_groups: Sequence[int]) -> StoredRows:
        """The row groups as they are stored, one after another."""
        parts = [self.table.load_row_group(number, self.features) for number in row_groups]
        groups = {name: _joined_groups([part.groups[name] for part in parts]) for name in parts[0].groups}
        inverses = {name: group.inverse_B for name, group in groups.items()}
        unique = {name: group.features for name, group in groups.items()}
        return StoredRows(LogChunk.cat([part.samples for part in parts]), inverses, unique)

    def window(self, stored: StoredRows, rows_M: Tensor) -> TableWindow:
        """These samples, in this order."""
        stored, groups = self._with_groups(stored)
        samples = stored.samples
        weight_M = torch.ones(len(rows_M)) if samples.weight_B is None else samples.weight_B[rows_M]
        columns = [samples.dense[name] for name in self.dense]
        dense_BF = torch.stack(columns, 1) if columns else torch.zeros(len(samples), 0)
        batch = FeatureBatch(
            0, samples.ids_B[rows_M], weight_M, dense_BF[rows_M],
            {name: samples.labels[name][rows_M] for name in self.labels},
            {name: rows.select(rows_M) for name, rows in samples.features.items()},
            {name: DedupedGroup(group.features, group.inverse_B[rows_M]) for name, group in groups.items()},
        )  # fmt: skip
        self._require_past(batch, samples.time_B[rows_M])
        batch, wrong = ids_in_range(batch, self.num_rows)
        where = str(self.table.folder)
        faults = {n: Fault(str(int(batch.ids_B[n])), where, message) for n, message in wrong.items()}
        if faults and self.out_of_range == "stop":
            raise DataError(
                f"{next(iter(faults.values()))}. {len(faults):,} of {len(batch):,} samples have such ids. Hash the "
                "ids into the table, make it larger, or set data.out_of_range=weight_0"
            )
        batch.weight_B[list(faults)] = 0
        return TableWindow(batch, faults)

    def _require_past(self, batch: FeatureBatch, time_M: Tensor) -> None:
        for name in self.item_times:
            group = next((group for group in batch.groups.values() if name in group.features), None)
            rows = batch.features[name] if group is None else group.features[name]
            owner_N = torch.repeat_interleave(torch.arange(len(rows)), rows.lengths_B)
            newest = torch.full((len(rows),), torch.iinfo(torch.int64).min).scatter_reduce_(
                0, owner_N, rows.values_N, "amax"
            )
            newest_M = newest if group is None else newest[group.inverse_B]
            if len(late := (newest_M > time_M).nonzero()):
                row = int(late[0])
                raise DataError(
                    f"sample {int(batch.ids_B[row])} of {self.table.folder} has the time {int(time_M[row])}, but its "
                    f"{name} has an item of {int(newest_M[row])}: a history must end before its sample, or the model "
                    "learns from what it should predict"
                )

    def _with_groups(self, stored: StoredRows) -> tuple[StoredRows, dict[str, DedupedGroup]]:
        """The groups that are wanted, and the other features with a row a sample.

        A group that is stored is taken as it is. Rows of another are compared, all of the window at once.
        """
        same = {frozenset(group.features): group for group in stored.groups.values()}
        taken = {name: same[frozenset(its)] for name, its in self.groups.items() if frozenset(its) in same}
        kept = {id(group) for group in taken.values()}
        features = dict(stored.samples.features)
        for group in stored.groups.values():
            features |= {} if id(group) in kept else group.expand()
        compared = {name: its for name, its in self.groups.items() if name not in taken}
        found = deduplicate(features, compared)
        plain = {name: rows for name, rows in features.items() if not any(name in its for its in compared.values())}
        samples = replace(stored.samples, features={name: plain[name] for name in self.features if name in plain})
        return replace(stored, samples=samples), {name: taken.get(name) or found[name] for name in self.groups}


def join_batches(parts: Sequence[FeatureBatch], index: int) -> FeatureBatch:
    """One batch of all samples; rows that two parts have stay apart."""
    first = parts[0]
    if len(parts) == 1:
        return replace(first, index=index)
    return FeatureBatch(
        index, torch.cat([part.ids_B for part in parts]), torch.cat([part.weight_B for part in parts]),
        torch.cat([part.dense_BF for part in parts]),
        {name: torch.cat([part.labels[name] for part in parts]) for name in first.labels},
        {name: Jagged.cat([part.features[name] for part in parts]) for name in first.features},
        {name: _joined_groups([part.groups[name] for part in parts]) for name in first.groups},
        torch.cat(sessions) if (sessions := [one.session_B for one in parts if one.session_B is not None]) else None,
    )  # fmt: skip


def _joined_groups(groups: Sequence[DedupedGroup]) -> DedupedGroup:
    begins = itertools.accumulate((group.num_unique for group in groups[:-1]), initial=0)
    features = {name: Jagged.cat([group.features[name] for group in groups]) for name in groups[0].features}
    inverses = [group.inverse_B + begin for group, begin in zip(groups, begins, strict=True)]
    return DedupedGroup(features, torch.cat(inverses))


def ids_in_range(batch: FeatureBatch, num_rows: Mapping[str, int]) -> tuple[FeatureBatch, dict[int, str]]:
    """The batch with valid ids, and for each sample that had another what was wrong.

    Args:
        num_rows: of features, the rows of their tables; ids of the others are not checked.
    """
    features, wrong = _mend(batch.features, num_rows)
    groups = dict(batch.groups)
    for name, group in batch.groups.items():
        mended, wrong_rows = _mend(group.features, num_rows)
        if wrong_rows:
            groups[name] = DedupedGroup(mended, group.inverse_B)
            bad_U = torch.zeros(group.num_unique, dtype=torch.bool)
            bad_U[torch.tensor([*wrong_rows])] = True
            for sample in bad_U[group.inverse_B].nonzero().squeeze(1).tolist():
                wrong.setdefault(sample, wrong_rows[int(group.inverse_B[sample])])
    return replace(batch, features=features, groups=groups), wrong


def _mend(features: Mapping[str, Jagged], num_rows: Mapping[str, int]) -> tuple[dict[str, Jagged], dict[int, str]]:
    mended, wrong = dict(features), dict[int, str]()
    for name in features.keys() & num_rows.keys():
        rows, most = features[name], num_rows[name]
        bad_N = (rows.values_N < 0) | (rows.values_N >= most)
        if not bad_N.any():
            continue
        mended[name] = Jagged(rows.values_N.masked_fill(bad_N, 0), rows.lengths_B, rows.weights_N)
        place_N = bad_N.nonzero().squeeze(1)
        row_N = torch.searchsorted(rows.offsets, place_N, right=True) - 1
        for row, value in zip(row_N.tolist(), rows.values_N[place_N].tolist(), strict=True):
            wrong.setdefault(row, f"{name} has the id {value}, but its table has the rows 0 to {most - 1}")
    return mended, wrong
