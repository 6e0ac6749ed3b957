"""Drops activations by a function of seed, step, layer and sample, so that no layout or restart changes the choice.

Shape letters: R rows.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nemo_vfm.sparse.tables.counter_hash import name_salt, row_keys, signed_salt, uniform


@dataclass(frozen=True, eq=False)
class DropoutPlaces:
    """Whose activations the rows are.

    Args:
        ids_R: number of each row's sample in its log; of a unique row, that of the first sample that has it.
        step: number of the global batch.
    """

    ids_R: Tensor
    step: int


class SampleDropout(nn.Module):
    """Zeros with probability `p` in training, and divides what stays by 1 - p.

    Args:
        p: 0 up to but not 1.
        name: of the layer; layers of one name drop alike.

    Raises:
        ValueError: `p` is out of range.
    """

    def __init__(self, p: float, name: str) -> None:
        super().__init__()
        if not 0 <= p < 1:
            raise ValueError(f"dropout must be at least 0 and below 1, got {p}")
        self.p, self.salt = p, signed_salt(name_salt(torch.initial_seed(), f"dropout/{name}"))

    def forward(self, x: Tensor, places: DropoutPlaces) -> Tensor:
        """(R, ...), of the same shape."""
        if not self.p or not self.training:
            return x
        salts_R = torch.full_like(places.ids_R, self.salt)
        drawn = uniform(row_keys(salts_R, places.ids_R, places.step), x[0].numel()).view_as(x)
        return x * ((drawn > 2 * self.p - 1).to(x.dtype) / (1 - self.p))
