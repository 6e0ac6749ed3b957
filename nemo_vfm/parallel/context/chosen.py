# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""A device and a dtype in, the fastest kernel that runs there out."""

from torch import Tensor

from nemo_vfm.parallel.context.cpu import CpuFlash
from nemo_vfm.parallel.context.kernel import Kernel, Looped, Plain


def chosen(q: Tensor) -> Kernel:
    """A kernel for these queries and for keys of the same dtype."""
    if q.device.type == "cpu" and CpuFlash.usable() and q.dtype.is_floating_point:
        return Looped(CpuFlash())
    return Looped(Plain())
