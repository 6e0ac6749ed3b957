# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Makes products in FP8 allocate as on a GPU, while a model's memory is traced."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import torch
from torch import Tensor

from nemo_vfm.parallel.fp8 import fp8_linear
from nemo_vfm.parallel.fp8.quantise import Quantised


@contextmanager
def fp8_products_of(*, gpu: bool) -> Iterator[None]:
    """Of a GPU's tensor cores, or of the emulation on a CPU, which has both operands in fp32 as well."""
    if not gpu:
        yield
        return
    with mock.patch.object(fp8_linear, "emulated_product", _native):
        yield


def _native(a: Quantised, b: Quantised) -> Tensor:
    """An output, and for a while a copy of each operand that does not lie along the sum."""
    held = [operand.elements.contiguous() for operand in (a, b)]
    product = torch.empty(len(a.elements), len(b.elements), dtype=torch.bfloat16)
    del held
    return product
