"""Defines the layers of recommenders and draws their first weights.

`SampleDropout` draws by a function of seed, step, layer and sample, so that no layout or restart changes the choice.
`row_layout` lays jagged rows out as one padded tensor with an exact mask.
Shape letters: B samples, R rows, N values, T the longest kept row, D width.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from nemo_vfm.core.bounds import MAX_WIDTH, require_between
from nemo_vfm.core.counter_random import normal
from nemo_vfm.parallel.layers.linear import Linear
from nemo_vfm.sparse.jagged import Jagged, slice_positions
from nemo_vfm.sparse.tables.counter_hash import name_salt, row_keys, uniform


class RankerMLP(nn.Module):
    """Layers of these widths, each with a ReLU; one more without it, if `outputs` is its width."""

    def __init__(self, inputs: int, widths: Sequence[int], outputs: int | None = None) -> None:
        super().__init__()
        self.sizes = [inputs, *widths, *([] if outputs is None else [outputs])]
        for size in self.sizes:
            require_between(1, MAX_WIDTH, width=size)
        self.layers = nn.ModuleList(Linear(a, b) for a, b in pairwise(self.sizes))
        self.num_relu = len(widths)

    def forward(self, x: Tensor) -> Tensor:
        """(B, inputs) -> (B, the last width)."""
        for place, layer in enumerate(self.layers):
            x = layer(x)
            if place < self.num_relu:
                x = x.relu()
        return x

    def flops(self, rows: float) -> float:
        return 2.0 * rows * sum(a * b for a, b in pairwise(self.sizes))


def logits_of(x: Tensor) -> Tensor:
    """In fp32, but for fp64, which stays."""
    return x if x.dtype == torch.float64 else x.float()


def first_weight(name: str, shape: torch.Size, seed: int) -> Tensor:
    """Matrices normal with variance 2 / (inputs + outputs), as DLRM's; norms 1, slopes 1/4, other vectors 0."""
    if ".slopes." in name:
        return torch.full(shape, 0.25)
    if len(shape) < 2:
        return torch.ones(shape) if name.endswith("norm.weight") else torch.zeros(shape)
    std = math.sqrt(2 / (shape[0] + shape[1]))
    return normal(shape, seed, "init", name).mul_(std)


@dataclass(frozen=True, eq=False)
class DropoutPlaces:
    """Whose activations the rows are."""

    ids_R: Tensor  #: number of each row's sample in its log; of a unique row, that of the first sample that has it
    step: int  #: number of the global batch


class SampleDropout(nn.Module):
    """Zeros with probability `p` in training, and divides what stays by 1 - p."""

    def __init__(self, p: float, name: str) -> None:
        super().__init__()
        if not 0 <= p < 1:
            raise ValueError(f"dropout must be at least 0 and below 1, got {p}")
        self.p, self.salt = p, name_salt(torch.initial_seed(), f"dropout/{name}")

    def forward(self, x: Tensor, places: DropoutPlaces) -> Tensor:
        """(R, ...), of the same shape."""
        if not self.p or not self.training:
            return x
        salts_R = torch.full_like(places.ids_R, self.salt)
        drawn = uniform(row_keys(salts_R, places.ids_R, places.step), x[0].numel()).view_as(x)
        return x * ((drawn > 2 * self.p - 1).to(x.dtype) / (1 - self.p))


@dataclass(frozen=True, eq=False)
class RowLayout:
    """Where the last values of each row go."""

    lengths_R: Tensor  #: how many values of each row are kept
    longest: int  #: T, at least 1
    source_N: Tensor  #: the kept values among all
    target_N: Tensor  #: their places in R x T

    @property
    def mask_RT(self) -> Tensor:
        """True where there is a value."""
        return torch.arange(self.longest, device=self.lengths_R.device) < self.lengths_R[:, None]

    def to_padded(self, values_N: Tensor) -> Tensor:
        """(R, T, ...), zeros where there is no value."""
        rows = len(self.lengths_R)
        flat = values_N.new_zeros(rows * self.longest, *values_N.shape[1:])
        kept = values_N.index_select(0, self.source_N)
        return flat.index_copy(0, self.target_N, kept).reshape(rows, self.longest, *values_N.shape[1:])


@dataclass(frozen=True, eq=False)
class _ExportedLayout(RowLayout):
    """The same in operators whose results have known sizes: all rows are as long as may be."""

    ends_R: Tensor  #: behind the last value of each row, among all

    def to_padded(self, values_N: Tensor) -> Tensor:
        """See `RowLayout.to_padded`. A row of zeros behind the values stands for padding."""
        place_RT = (self.ends_R - self.lengths_R)[:, None] + torch.arange(self.longest, device=self.ends_R.device)
        with_zero = torch.cat([values_N, values_N.new_zeros(1, *values_N.shape[1:])])
        return with_zero[place_RT.where(self.mask_RT, values_N.shape[0])]


def row_layout(rows: Jagged, most: int) -> RowLayout:
    """The last `most` values of each row, first the oldest of them, then padding.

    A device waits here for the longest length.
    """
    lengths_R = rows.lengths_B.clamp(max=most)
    if torch.compiler.is_exporting():
        return _ExportedLayout(lengths_R, most, lengths_R[:0], lengths_R[:0], rows.offsets[1:])
    longest = max(1, int(lengths_R.max())) if len(lengths_R) else 1
    source_N = slice_positions(rows.offsets[1:] - lengths_R, lengths_R)
    begins_R = torch.arange(len(lengths_R), device=lengths_R.device) * longest
    return RowLayout(lengths_R, longest, source_N, slice_positions(begins_R, lengths_R, len(source_N)))
