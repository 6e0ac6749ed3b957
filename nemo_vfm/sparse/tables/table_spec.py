"""Describes one embedding table: its rows, its width, and which features look it up."""

from dataclasses import dataclass
from typing import Literal

import torch

from nemo_vfm.core.bounds import MAX_ROWS, MAX_WIDTH, require_between

MAX_TRITON_COLUMNS = 1024  #: that one Triton program holds
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class TableSpec:
    """One embedding table of shape (rows, width).

    Args:
        rows: how many ids it knows: 0 to rows - 1.
        width: numbers a row.
        features: names of the features whose ids are its rows. Several may share a table.
        pooling: "sum" or "mean" gives one vector a sample (zeros for a sample without ids); "sequence" one a value.
            With weights, "sum" is sum_i w_i x_i and "mean" is that divided by the number of ids.
        dtype: of the stored rows. Lookups, gradients and optimizer state are fp32 always; rows of bf16 and fp16 are
            rounded stochastically when they are updated.
        initial_scale: rows begin uniform in (-scale, scale); None means 1 / sqrt(rows), as DLRM begins.
    """

    rows: int
    width: int
    features: tuple[str, ...]
    pooling: Literal["sum", "mean", "sequence"] = "sum"
    dtype: Literal["fp32", "bf16", "fp16"] = "fp32"
    initial_scale: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "features", tuple(self.features))
        require_between(1, MAX_ROWS, rows=self.rows)
        require_between(1, MAX_WIDTH, width=self.width)
        if not self.features or len(set(self.features)) < len(self.features):
            raise ValueError(f"features {list(self.features)}: name at least one, and each once")
        if self.pooling not in ("sum", "mean", "sequence") or self.dtype not in DTYPES:
            raise ValueError(
                f"pooling {self.pooling!r}, dtype {self.dtype!r}: use sum, mean or sequence, and fp32, bf16 or fp16"
            )
