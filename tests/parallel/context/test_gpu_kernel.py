"""Tests on a GPU that torch's flash kernels take our sequences and give the formula's numbers."""

import pytest
import torch

from nemo_vfm.parallel.context.kernel import MathAttention, TiledKernel
from nemo_vfm.parallel.context.kernel_choice import GpuFlash, _try_kernel, choose_kernel
from nemo_vfm.parallel.context.varlen_batching import VarlenBatch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("width", [64, 72, 100, 128, 256])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_flash_kernels_prove_themselves(dtype, width):
    kernel = choose_kernel(torch.device("cuda"), dtype, width)
    assert isinstance(kernel, VarlenBatch)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_flash_kernels_are_as_near_to_fp32_as_the_formula_in_16_bits(dtype):
    like = torch.empty(0, 64, device="cuda", dtype=dtype)
    for found, right in zip(
        _try_kernel(VarlenBatch(GpuFlash()), like), _try_kernel(TiledKernel(MathAttention()), like), strict=True
    ):
        assert (found - right).abs().max() < 4 * torch.finfo(dtype).eps * right.abs().max()


def test_fp32_on_a_gpu_takes_the_plain_formula():
    assert isinstance(choose_kernel(torch.device("cuda"), torch.float32, 64)._one, MathAttention)
