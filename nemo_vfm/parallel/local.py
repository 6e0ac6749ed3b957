# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Tensors that may be this rank's part of a larger one in; the part itself out, and put in."""

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset


def local(tensor: Tensor) -> Tensor:
    """This rank's part, sharing its memory; a plain tensor is its own."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor on every rank that has a part of it, all of which must call this; a plain one is its own."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


@torch.no_grad()
def copy_own(target: Tensor, whole: Tensor) -> None:
    """Copy into a tensor, or a part of one, what the whole has at its place."""
    if not isinstance(target, DTensor):
        target.copy_(whole)
        return
    shape, offset = compute_local_shape_and_global_offset(target.shape, target.device_mesh, target.placements)
    own = whole[tuple(slice(start, start + size) for start, size in zip(offset, shape, strict=True))]
    target.to_local().copy_(own)
