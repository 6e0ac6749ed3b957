# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Computes what a low-rank adapter adds to a linear: s B A x, and of DoRA the change of the weight's row norms.

LoRA: Hu et al. 2021 (arXiv 2106.09685), section 4.1, W' = W + (alpha / rank) B A. DoRA: Liu et al. 2024
(arXiv 2402.09353), equation 5, W' = m (W + s B A) / |W + s B A| with the norm of each row, which is held constant in
backward (section 4.3).
A joint projection has an adapter for each of its parts, such as queries, keys and values, whose rows alternate in it.
Letters: I inputs of the linear, O outputs of a part, R rank, H heads, E head dimension, P parts.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from nemo_vfm.parallel.apply.beside_linear import TensorSplit
from nemo_vfm.parallel.apply.local_shard import local, whole
from nemo_vfm.parallel.engine.matmul_support import product

Method = Literal["lora", "dora"]
#: The one part of a linear that is no joint projection.
WHOLE = "whole"


@dataclass(frozen=True, slots=True)
class Rank:
    """Of one part of a linear.

    Args:
        rank: R, columns of B and rows of A.
        alpha: what is added is multiplied by alpha / rank.
    """

    rank: int
    alpha: float

    @property
    def scale(self) -> float:
        """alpha / rank."""
        return self.alpha / self.rank


@dataclass(frozen=True, slots=True)
class Parts:
    """How the rows of a linear belong to the projections that it joins.

    Args:
        names: of the projections, such as q, k and v.
        head_dim: rows of one head of one projection; 0 where there is one projection.
    """

    names: tuple[str, ...] = (WHOLE,)
    head_dim: int = 0

    def joined(self, parts: Mapping[str, Tensor], width: int) -> Tensor:
        """Outputs of projections, (..., O), as those of the linear, (..., width); zeros for a projection not there."""
        if self.names == (WHOLE,):
            return parts[WHOLE]
        some = next(iter(parts.values()))
        zeros = some.new_zeros(()).expand(*some.shape[:-1], width // len(self.names))
        each = [parts.get(name, zeros).unflatten(-1, (-1, self.head_dim)) for name in self.names]  # type: ignore[no-untyped-call]
        return torch.stack(each, -2).flatten(-3)

    def rows(self, whole: Tensor, name: str) -> Tensor:
        """The rows of a projection in a weight or a bias of the linear."""
        if self.names == (WHOLE,):
            return whole
        place = self.names.index(name)
        return whole.unflatten(0, (-1, len(self.names), self.head_dim))[:, place].flatten(0, 1)  # type: ignore[no-any-return, no-untyped-call]


class LowRank(nn.Module):
    """One adapter of one linear.

    Args:
        linear: that it belongs to.
        parts: of the linear.
        ranks: of the parts that are adapted.
        method: lora or dora.
    """

    def __init__(self, linear: nn.Linear, parts: Parts, ranks: Mapping[str, Rank], method: Method) -> None:
        super().__init__()
        self.parts, self.ranks, self.method, self.width = parts, dict(ranks), method, linear.out_features
        self._split: TensorSplit | None = None
        self.strength = 1.0
        outputs = linear.out_features // len(parts.names)
        like = linear.weight
        for name, rank in self.ranks.items():
            self.register_parameter(f"{name}_a", nn.Parameter(like.new_zeros(rank.rank, linear.in_features)))
            self.register_parameter(f"{name}_b", nn.Parameter(like.new_zeros(outputs, rank.rank)))
            if method == "dora":
                self.register_parameter(f"{name}_magnitude", nn.Parameter(like.new_ones(outputs)))

    def forward(self, x: Tensor, output: Tensor, linear: nn.Linear) -> Tensor:
        """The linear's output with the adapter.

        Args:
            x: the linear's input, (..., I).
            output: its output, (..., width).
            linear: itself.
        """
        a_of = [local(self.get_parameter(f"{name}_a")) for name in self.ranks]
        h = product(x, torch.cat(a_of) if len(a_of) > 1 else a_of[0])
        h = h if self._split is None else self._split.whole(h)
        split = h.split_with_sizes([rank.rank for rank in self.ranks.values()], -1)
        parts = {}
        for (name, rank), narrow in zip(self.ranks.items(), split, strict=True):
            parts[name] = product(self.strength * rank.scale * narrow, local(self.get_parameter(f"{name}_b")))
        if self.method == "dora":
            return self._decomposed(parts, output, linear)
        return output + self.parts.joined(parts, output.shape[-1])

    def _decomposed(self, parts: dict[str, Tensor], output: Tensor, linear: nn.Linear) -> Tensor:
        """m / |W + s B A| (W x + s B A x), and the bias."""
        factors = {}
        for name in self.ranks:
            magnitude = local(self.get_parameter(f"{name}_magnitude"))
            factors[name] = (magnitude / self.row_norms(linear, name)).to(output.dtype)
        ones = {name: output.new_ones(output.shape[-1] // len(self.parts.names)) for name in self.parts.names}
        factor = self.parts.joined({**ones, **factors}, output.shape[-1])
        bias = None if linear.bias is None else local(linear.bias).to(output.dtype)
        # One product over all: backward then keeps one tensor of the output's size for the magnitudes.
        changed = (output if bias is None else output - bias) + self.parts.joined(parts, output.shape[-1])
        return factor * changed if bias is None else torch.addcmul(bias, factor, changed)

    @torch.no_grad()
    def row_norms(self, linear: nn.Linear, name: str) -> Tensor:
        """|W + s B A| of each row of a part, (O,); of this rank's rows."""
        with torch.autocast(linear.weight.device.type, enabled=False):
            squares = self.changed_rows(linear.weight, name).float().square().sum(1)
        return (squares if self._split is None else self._split.summed(squares)).sqrt()

    def changed_rows(self, weight: Tensor, name: str) -> Tensor:
        """W + s B A of a part, (O, I); of this rank's rows or columns."""
        a, b = (local(self.get_parameter(f"{name}_{which}")) for which in "ab")
        return self.parts.rows(local(weight), name) + self.strength * self.ranks[name].scale * (b @ a)

    @torch.no_grad()
    def set_magnitudes(self, linear: nn.Linear) -> None:
        """Begin as the weight is: m = |W|, which is |W + s B A| while B is zero."""
        for name in self.ranks if self.method == "dora" else ():
            local(self.get_parameter(f"{name}_magnitude")).copy_(self.row_norms(linear, name))

    @torch.no_grad()
    def merged(self, linear: nn.Linear, weight: Tensor) -> Tensor:
        """A weight with the adapter in it, (width, I): the linear's own, or that with the adapters before this one."""
        parts = {name: self.parts.rows(weight, name) for name in self.parts.names}
        for name in self.ranks:
            parts[name] = self.changed_rows(weight, name)
            if self.method == "dora":
                factor = self.get_parameter(f"{name}_magnitude") / self.row_norms(linear, name)
                parts[name] = factor[:, None] * parts[name]
        return self.parts.joined({name: rows.t() for name, rows in parts.items()}, self.width).t()

    def whole(self) -> "LowRank":
        """The same on one device, of matrices that ranks share; every rank must call it."""
        alone = LowRank.__new__(LowRank)
        nn.Module.__init__(alone)
        alone.parts, alone.ranks, alone.method, alone.width = self.parts, self.ranks, self.method, self.width
        alone._split, alone.strength = None, self.strength
        for name, parameter in self.named_parameters():
            alone.register_parameter(name, nn.Parameter(whole(parameter.detach()), requires_grad=False))
        return alone

    def split(self, how: TensorSplit) -> None:
        """See `BesideLinear`."""
        self._split = how
        for name in self.ranks:
            a, b = f"{name}_a", f"{name}_b"
            if how.kind == "row":
                setattr(self, a, how.part(self.get_parameter(a), 1))
                continue
            setattr(self, b, how.part(self.get_parameter(b), 0))
            if self.method == "dora":
                setattr(self, f"{name}_magnitude", how.part(self.get_parameter(f"{name}_magnitude"), 0))
