# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Defines a linear with adapters beside it; its own weight and its name stay what they were."""

from typing import Any

from torch import Tensor, nn

from nemo_vfm.models.adapters.low_rank import LowRank
from nemo_vfm.parallel.apply.beside_linear import BESIDE, TensorSplit
from nemo_vfm.parallel.engine.matmul_support import Linear


class Adapters(nn.ModuleDict):
    """The adapters of one linear, by name."""

    #: Of a linear whose input every tensor rank has whole: no gradient in here is a part of a sum over tokens.
    whole_gradient = False

    def __init__(self) -> None:  # ModuleDict's own names a type that its module imports for checkers alone
        super().__init__()

    def split(self, how: TensorSplit) -> None:
        """See `BesideLinear`."""
        for adapter in self.values():
            assert isinstance(adapter, LowRank)
            adapter.split(how)


class AdaptedLinear(Linear):
    """A linear whose output its adapters change.

    The call is what is changed, not `forward`: what splits a linear over devices replaces tensors around `forward`.
    """

    adapters: Adapters

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        """W x + b, and what each adapter adds to it."""
        (x,) = args
        output: Tensor = super().__call__(x, **kwargs)
        for adapter in self.adapters.values():
            output = adapter(x, output, self)
        return output


def adapters_of(linear: nn.Linear) -> Adapters:
    """Those of a linear, which becomes one that has some."""
    if not isinstance(linear, AdaptedLinear):
        linear.__class__ = AdaptedLinear
        linear.add_module(BESIDE, Adapters())
    assert isinstance(linear, AdaptedLinear)
    return linear.adapters
