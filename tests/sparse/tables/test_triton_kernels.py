"""Tests Triton's kernels on a GPU or, without one, in Triton's interpreter; and that they compile for GPUs."""

import os
import subprocess
import sys

import pytest
import torch

from nemo_vfm.sparse.tables import row_kernels, row_storage
from nemo_vfm.sparse.tables.fused_tables import FusedTables
from nemo_vfm.sparse.tables.row_optimizer import RowSgd, RowWiseAdaGrad
from nemo_vfm.sparse.tables.table_spec import MAX_TRITON_COLUMNS, TableSpec
from tests.support.random_features import random_jagged

pytest.importorskip("triton", reason="Triton comes with torch for CUDA; make torchrec installs it, too")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
needs_kernels = pytest.mark.skipif(
    DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1", reason="no GPU, and TRITON_INTERPRET is not 1"
)


def learned(optimizer, dtype="fp32", weighted=False, clip=None):
    specs = {"t": TableSpec(40, 9, ("f",), dtype=dtype), "u": TableSpec(7, 9, ("g",), "mean", dtype=dtype)}
    tables = FusedTables(specs, optimizer, seed=1).to(DEVICE)
    for step in range(4):
        features = {"f": random_jagged(40, 8, step, 40, weighted), "g": random_jagged(7, 8, 50 + step, 9)}
        features = {name: one.to(DEVICE) for name, one in features.items()}
        sum((out**2).sum() for out in tables.lookup(features).values()).backward()
        tables.update(16.0, clip)
    return tables.state()


def in_torch(monkeypatch, *args):
    with monkeypatch.context() as patch:
        for name in ("triton_usable", "numba_usable"):
            patch.setattr(row_kernels, name, lambda tensor: False)
        return learned(*args)


@needs_kernels
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("clip", [None, torch.tensor(0.25, device=DEVICE)])
def test_row_wise_adagrad_is_that_of_torch(monkeypatch, weighted, clip):
    expected = in_torch(monkeypatch, RowWiseAdaGrad(0.1), "fp32", weighted, clip)
    for name, tensor in learned(RowWiseAdaGrad(0.1), "fp32", weighted, clip).items():
        torch.testing.assert_close(tensor, expected[name], rtol=2e-5, atol=1e-6)


@needs_kernels
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_rows_of_half_the_size_learn_what_they_learn_in_torch(monkeypatch, dtype):
    expected = in_torch(monkeypatch, RowSgd(0.1), dtype)
    spacing = {"bf16": 2**-8, "fp16": 2**-10}[dtype]  # a sum that differs in its last bit may round to the neighbour
    for name, tensor in learned(RowSgd(0.1), dtype).items():
        torch.testing.assert_close(tensor, expected[name], rtol=2 * spacing, atol=1e-6)


@needs_kernels
@pytest.mark.parametrize("width", [1, 9, 64, 1500])
@pytest.mark.parametrize("weighted", [False, True])
def test_bags_of_any_length_and_width_are_summed(width, weighted):
    from nemo_vfm.sparse.tables import triton_kernels

    numbers = torch.Generator().manual_seed(width)
    bags = random_jagged(30, 6, 3, 70, weighted)
    lengths_B = torch.cat([bags.lengths_B, torch.tensor([0])])  # and an empty one at the end
    rows_RD = torch.randn(30, width, generator=numbers).bfloat16()
    parts = torch.split(
        rows_RD.double()[bags.values_N] * (bags.weights_N[:, None] if weighted else 1), lengths_B.tolist()
    )
    offsets = torch.cat([torch.tensor([0]), lengths_B.cumsum(0)])
    given = [None if one is None else one.to(DEVICE) for one in (rows_RD, bags.values_N, offsets, bags.weights_N)]
    found, again = (triton_kernels.sum_bags(*given) for _ in range(2))
    expected = torch.stack([part.sum(0) for part in parts]).to(DEVICE, torch.float32)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(found, again)


def test_rows_too_wide_for_a_program_are_left_to_other_kernels(monkeypatch):
    monkeypatch.setattr(row_kernels, "triton_usable", lambda tensor: True)
    narrow, wide = (
        row_storage.RowStorage({"t": TableSpec(2, width, ("f",))}, RowSgd(0.1), 0, torch.device("cpu"))
        for width in (MAX_TRITON_COLUMNS, MAX_TRITON_COLUMNS + 1)
    )
    assert narrow._takes_triton() and not wide._takes_triton()


COMPILED = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from nemo_vfm.sparse.tables import triton_kernels as kernels

POINTERS = {"rows": "*bf16", "keys": "*i64", "offsets": "*i64", "weights": "*fp32", "out": "*fp32", "width": "i32"}
STEP = {"rows": "*fp32", "sums": "*fp32", "touched": "*i64", "offsets": "*i64", "bags": "*i64", "weights": "*fp32",
        "grads": "*fp32", "scale": "*fp32", "lr": "fp32", "eps": "fp32", "width": "i32"}
for capability in (80, 90):
    for kernel, types in ((kernels._sum_bags, POINTERS), (kernels._update_row_wise, STEP)):
        constants = {"WEIGHTED": True, "VALUES": 16, "COLUMNS": 64}
        source = ASTSource(kernel, types | dict.fromkeys(constants, "constexpr"), constexprs=constants)
        assert triton.compile(source, target=GPUTarget("cuda", capability, 32)).asm["cubin"]
"""


def test_kernels_compile_for_ampere_and_hopper_without_a_gpu(tmp_path):
    env = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", COMPILED], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
