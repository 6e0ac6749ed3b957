"""Holds consecutive samples of a log by column, as importers give them and feature tables store them.

Shape letters: B samples, M selected samples, F dense features.
"""

from collections.abc import Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from nemo_vfm.core.errors import DataError
from nemo_vfm.sparse.jagged import Jagged


@dataclass(frozen=True, eq=False)
class LogChunk:
    """Samples of a log. Nothing is checked here, see `require_valid`."""

    ids_B: Tensor  #: the number of each sample in its log, int64
    session_B: Tensor  #: the session of each sample, int64
    time_B: Tensor  #: when each was logged, int64; in which unit, the source says
    #: numbers by name, float32 (B,); NaN where one is missing
    dense: Mapping[str, Tensor] = field(default_factory=dict)
    labels: Mapping[str, Tensor] = field(default_factory=dict)  #: labels by name, float32 (B,)
    #: ids by name, a row a sample; an empty row where a feature is missing
    features: Mapping[str, Jagged] = field(default_factory=dict)
    #: what each sample counts in a loss or a mean, above 0, float32; None where all count alike
    weight_B: Tensor | None = None

    def __len__(self) -> int:
        return len(self.ids_B)

    @property
    def dense_BF(self) -> Tensor:
        """All dense numbers side by side, in the order of their names here; (B, 0) where there are none."""
        return torch.stack([*self.dense.values()], 1) if self.dense else torch.empty(len(self), 0)

    def columns(self) -> dict[str, Tensor]:
        """By name: `sample`, `session`, `time`, `weight`, `dense/NAME`, `label/NAME`, and of features `values/NAME`,
        `lengths/NAME` and `weights/NAME`; weights only where there are any.
        """
        found = {"sample": self.ids_B, "session": self.session_B, "time": self.time_B}
        found |= {} if self.weight_B is None else {"weight": self.weight_B}
        found |= {f"dense/{name}": column for name, column in self.dense.items()}
        found |= {f"label/{name}": column for name, column in self.labels.items()}
        for name, rows in self.features.items():
            found |= {f"values/{name}": rows.values_N, f"lengths/{name}": rows.lengths_B}
            found |= {} if rows.weights_N is None else {f"weights/{name}": rows.weights_N}
        return found

    @staticmethod
    def of_columns(columns: Mapping[str, Tensor]) -> "LogChunk":
        """What `columns` was made of; lengths may be smaller integers."""

        def below(kind: str) -> dict[str, Tensor]:
            return {name.removeprefix(kind): column for name, column in columns.items() if name.startswith(kind)}

        values, weights = below("values/"), below("weights/")
        features = {
            name: Jagged(values[name], lengths.to(torch.int64), weights.get(name))
            for name, lengths in below("lengths/").items()
        }
        return LogChunk(
            columns["sample"], columns["session"], columns["time"], below("dense/"), below("label/"), features,
            columns.get("weight"),
        )  # fmt: skip

    def rows(self, begin: int, end: int) -> "LogChunk":
        """The samples begin..end, as views."""
        return LogChunk(
            self.ids_B[begin:end], self.session_B[begin:end], self.time_B[begin:end],
            {name: column[begin:end] for name, column in self.dense.items()},
            {name: column[begin:end] for name, column in self.labels.items()},
            {name: feature.rows(begin, end) for name, feature in self.features.items()},
            None if self.weight_B is None else self.weight_B[begin:end],
        )  # fmt: skip

    def select(self, rows_M: Tensor) -> "LogChunk":
        """These samples, in this order."""
        return LogChunk(
            self.ids_B[rows_M], self.session_B[rows_M], self.time_B[rows_M],
            {name: column[rows_M] for name, column in self.dense.items()},
            {name: column[rows_M] for name, column in self.labels.items()},
            {name: feature.select(rows_M) for name, feature in self.features.items()},
            None if self.weight_B is None else self.weight_B[rows_M],
        )  # fmt: skip

    @staticmethod
    def cat(parts: "Sequence[LogChunk]") -> "LogChunk":
        """All samples of the parts, one part after another; all have the columns of the first.

        Raises:
            ValueError: there is no part.
        """
        if not parts:
            raise ValueError("there is no chunk to join; give at least one")
        first = parts[0]
        if len(parts) == 1:
            return first
        return LogChunk(
            torch.cat([part.ids_B for part in parts]),
            torch.cat([part.session_B for part in parts]),
            torch.cat([part.time_B for part in parts]),
            {name: torch.cat([part.dense[name] for part in parts]) for name in first.dense},
            {name: torch.cat([part.labels[name] for part in parts]) for name in first.labels},
            {name: Jagged.cat([part.features[name] for part in parts]) for name in first.features},
            torch.cat(weights) if (weights := [one.weight_B for one in parts if one.weight_B is not None]) else None,
        )

    def require_valid(self, num_rows: Mapping[str, int] | None = None) -> None:
        """Check that every column has B samples, and each feature.

        Args:
            num_rows: of features, the rows of their tables; ids of the others are not checked.

        Raises:
            DataError: a column is longer or shorter, or see `Jagged.require_valid`.
        """
        named: dict[str, Sized] = {"session_B": self.session_B, "time_B": self.time_B}
        named |= {} if self.weight_B is None else {"weight_B": self.weight_B}
        for name, column in {**named, **self.dense, **self.labels, **self.features}.items():
            if len(column) != len(self):
                raise DataError(f"{name} has {len(column)} samples, but the chunk has {len(self)}.")
        for name, feature in self.features.items():
            feature.require_valid((num_rows or {}).get(name), name)


@runtime_checkable
class LogSource(Protocol):
    """Where samples of a log come from: a file of somebody's, a generator, or a feature table."""

    def log_chunks(self) -> Iterator[LogChunk]:
        """All samples once, the same at every call, in chunks of any size."""
        ...
