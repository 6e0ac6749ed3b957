"""Holds a batch of a recommender: dense numbers, labels, and jagged features, plain or deduplicated.

Shape letters: B samples, F dense features.
"""

import itertools
from collections.abc import Mapping, Sized
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from nemo_vfm.core.errors import DataError
from nemo_vfm.sparse.deduped_group import DedupedGroup
from nemo_vfm.sparse.jagged import Jagged


@dataclass(slots=True)
class FeatureBatch:
    """Samples of a log, see `nemo_vfm.core.types.batch.Batch`."""

    index: int  #: see `Batch`
    ids_B: Tensor  #: the number of each sample in its log, int64
    weight_B: Tensor  #: see `Batch`
    dense_BF: Tensor  #: float32
    labels: Mapping[str, Tensor]  #: of each label its B values, such as 1 where a sample was clicked
    features: Mapping[str, Jagged] = field(default_factory=dict)  #: with a row a sample
    groups: Mapping[str, DedupedGroup] = field(default_factory=dict)  #: features that are stored once a unique row
    session_B: Tensor | None = None  #: the session of each sample, int64; None where nobody asks for it

    @property
    def keys(self) -> tuple[str, ...]:
        """The ids as text. They are made at each call, since most steps never ask."""
        return tuple(map(str, self.ids_B.tolist()))

    def __len__(self) -> int:
        return len(self.ids_B)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of what a model reads: `dense_BF`, and `FEATURE.values` and `FEATURE.lengths` of each feature.

        Lengths are one a sample, and of a group's features one a unique row: what there is to look up.
        """
        found: dict[str, tuple[int, ...]] = {"dense_BF": tuple(self.dense_BF.shape)}
        for features in (self.features, *(group.features for group in self.groups.values())):
            for name, feature in features.items():
                found[f"{name}.values"] = tuple(feature.values_N.shape)
                found[f"{name}.lengths"] = tuple(feature.lengths_B.shape)
        return found

    def cut(self, parts: int) -> "list[FeatureBatch]":
        """See `Batch.cut`. Groups stay deduplicated: each part holds the unique rows that its samples have."""
        count = max(1, min(parts, len(self)))
        if count == 1:
            return [self]  # most steps ask for one part: views of 26 features cost a tenth of a small DLRM's step
        borders = [len(self) * n // count for n in range(count + 1)]
        return [self.rows(begin, end) for begin, end in itertools.pairwise(borders)]

    def rows(self, begin: int, end: int) -> "FeatureBatch":
        """The samples begin..end."""
        return FeatureBatch(
            self.index, self.ids_B[begin:end], self.weight_B[begin:end], self.dense_BF[begin:end],
            {name: label[begin:end] for name, label in self.labels.items()},
            {name: feature.rows(begin, end) for name, feature in self.features.items()},
            {name: group.rows(begin, end) for name, group in self.groups.items()},
            None if self.session_B is None else self.session_B[begin:end],
        )  # fmt: skip

    def select(self, rows_M: Tensor) -> "FeatureBatch":
        """These samples, in this order; groups keep all of their unique rows."""
        return FeatureBatch(
            self.index, self.ids_B[rows_M], self.weight_B[rows_M], self.dense_BF[rows_M],
            {name: label[rows_M] for name, label in self.labels.items()},
            {name: feature.select(rows_M) for name, feature in self.features.items()},
            {name: DedupedGroup(group.features, group.inverse_B[rows_M]) for name, group in self.groups.items()},
            None if self.session_B is None else self.session_B[rows_M],
        )  # fmt: skip

    def to(self, device: torch.device | str) -> "FeatureBatch":
        return FeatureBatch(
            self.index, self.ids_B.to(device, non_blocking=True), self.weight_B.to(device, non_blocking=True),
            self.dense_BF.to(device, non_blocking=True),
            {name: label.to(device, non_blocking=True) for name, label in self.labels.items()},
            {name: feature.to(device) for name, feature in self.features.items()},
            {name: group.to(device) for name, group in self.groups.items()},
            None if self.session_B is None else self.session_B.to(device, non_blocking=True),
        )  # fmt: skip

    def expand(self) -> "FeatureBatch":
        """The same batch with a row a sample of every feature and without groups: what deduplication must equal."""
        expanded = {name: rows for group in self.groups.values() for name, rows in group.expand().items()}
        return replace(self, features={**self.features, **expanded}, groups={})

    def require_valid(self, num_rows: Mapping[str, int] | None = None) -> None:
        """Check that everything has B samples, and each feature and group.

        Args:
            num_rows: of features, the rows of their tables; ids of the others are not checked.

        Raises:
            DataError: see `Jagged.require_valid` and `DedupedGroup.require_valid`.
        """
        of_samples: dict[str, Sized] = {"weight_B": self.weight_B, "dense_BF": self.dense_BF}
        if self.session_B is not None:
            of_samples["session_B"] = self.session_B
        for name, part in {**of_samples, **self.labels, **self.features, **self.groups}.items():
            if len(part) != len(self):
                raise DataError(f"batch {self.index}: {name} has {len(part)} samples, but the batch has {len(self)}.")
        for name, feature in self.features.items():
            feature.require_valid((num_rows or {}).get(name), name)
        for group in self.groups.values():
            group.require_valid(num_rows)
