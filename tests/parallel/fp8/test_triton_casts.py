"""Tests that Triton's casts give the bytes of torch's operators, on a GPU or, nearly, in Triton's interpreter."""

import os

import pytest
import torch
from torch import Tensor, nn

from nemo_vfm.core.fp8 import Fp8, Recipe
from nemo_vfm.parallel.engine.history_updater import HistoryUpdater
from nemo_vfm.parallel.fp8 import operands
from nemo_vfm.parallel.fp8.fp8_linear import to_fp8
from nemo_vfm.parallel.fp8.quantise import E4M3, E5M2, Fp8Tensor, Granularity, quantise, quantise_by

pytest.importorskip("triton", reason="Triton comes with torch for CUDA; make torchrec installs it, too")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = pytest.mark.skipif(
    DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1", reason="no GPU, and TRITON_INTERPRET is not 1"
)


def numbers(kind: str, rows: int = 256, columns: int = 384) -> Tensor:
    x = torch.randn(rows, columns, generator=torch.Generator().manual_seed(1)) * 3
    if kind == "special":
        x[3, 7], x[190, 300], x[100], x[:, 20] = float("inf"), float("nan"), 0, -0.0
    elif kind == "tiny":
        x *= 1e-38
    return x.bfloat16().to(DEVICE)


def same(found: Fp8Tensor | None, expected: Fp8Tensor) -> None:
    """Every byte, any NaN for any other. The interpreter does not round as a GPU does, nor carry into the exponent."""
    assert found is not None and torch.equal(found.scale, expected.scale)
    ours, right = (one.elements.float() for one in (found, expected))
    if DEVICE == "cuda":
        torch.testing.assert_close(ours, right, rtol=0, atol=0, equal_nan=True)
    else:
        assert (ours == right)[right.isfinite()].float().mean() > 0.6


@pytest.mark.parametrize("kind", ["usual", "special", "tiny"])
@pytest.mark.parametrize("to", [E4M3, E5M2])
@pytest.mark.parametrize("granularity", ["tensor", "row", "1x128", "128x128"])
def test_both_copies_have_the_bytes_of_torchs_operators(granularity: Granularity, to: torch.dtype, kind: str) -> None:
    from nemo_vfm.parallel.fp8.triton_casts import amax_of_rows, amax_of_tensor, cast

    for pow2 in (False, True):
        x, amax = numbers(kind, *((200, 360) if granularity in ("tensor", "row") else (256, 384))), None
        if granularity == "tensor":
            amax = (amax_of_tensor(x),) * 2
        elif granularity == "row":
            amax = amax_of_rows(x)
        first, second = cast(x, granularity, to, amax, pow2=pow2)
        same(first, quantise(x, granularity, to, pow2=pow2))
        same(second, quantise(x.T.contiguous(), granularity, to, pow2=pow2))
        alone, other = cast(x, granularity, to, amax, pow2=pow2, rowwise=False)
        assert alone is None and second is not None
        same(other, second)


def test_a_factor_that_was_fixed_before_saturates_what_is_larger() -> None:
    from nemo_vfm.parallel.fp8.triton_casts import cast

    x, factor = numbers("usual", 48, 80), torch.tensor(200.0, device=DEVICE)
    first, second = cast(x, "tensor", E4M3, factor=factor)
    same(first, quantise_by(x, factor))
    same(second, Fp8Tensor(quantise_by(x, factor).elements.T, factor.reciprocal()))
    assert first.elements.float().abs().max() == 448


@pytest.mark.parametrize("granularity", ["tensor", "row", "1x128", "128x128"])
def test_the_kernels_are_proper_operators(granularity: Granularity) -> None:
    """What `torch.compile` believes of them is true: shapes, dtypes, and that nothing is written or shared."""
    from nemo_vfm.parallel.fp8 import triton_casts

    x, kind = numbers("usual"), triton_casts._KINDS[granularity]
    amax = {"tensor": (triton_casts.amax_of_tensor(x),) * 2, "row": triton_casts.amax_of_rows(x)}.get(
        granularity, (None,) * 2
    )
    for rowwise, columnwise in ((True, True), (True, False), (False, True)):
        torch.library.opcheck(triton_casts._copies.operator, (x, kind, E4M3, *amax, True, rowwise, columnwise))
    torch.library.opcheck(triton_casts.amax_of_tensor.operator, (x,))
    torch.library.opcheck(triton_casts.amax_of_rows.operator, (x,))


@pytest.mark.parametrize("recipe", ["current", "delayed", "rowwise", "block"])
def test_a_compiled_linear_is_one_graph_with_the_same_numbers(recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operands, "fuses", lambda x: True)
    layer = to_fp8(nn.Linear(256, 128, device=DEVICE), Fp8(recipe=recipe))
    found = []
    for call in (layer, torch.compile(layer, backend="aot_eager", fullgraph=True)):
        x = numbers("usual", 128, 256).requires_grad_()
        with torch.autocast(DEVICE, torch.bfloat16):
            y = call(x)
        y.float().square().mean().backward()
        found.append((y.detach(), x.grad, layer.weight.grad.clone()))
        layer.weight.grad = None
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


@pytest.mark.skipif(DEVICE == "cpu", reason="a CPU's linears take torch's operators")
@pytest.mark.parametrize("recipe", ["current", "delayed", "rowwise", "block"])
def test_a_linear_is_the_same_with_either(recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> list[Tensor]:
        torch.manual_seed(0)
        layer = to_fp8(nn.Linear(256, 384, device=DEVICE), Fp8(recipe=recipe))
        found = []
        for size in (1.0, 3.0):
            x = torch.randn(200, 256, device=DEVICE).mul_(size).requires_grad_()
            with torch.autocast(DEVICE, torch.bfloat16):
                y = layer(x)
            (y.float() ** 2).mean().backward()
            HistoryUpdater(layer, None).apply()
            found += [y.detach(), x.grad, layer.weight.grad.clone()]
        return found

    ours = run()
    monkeypatch.setattr(operands, "_TRITON", False)
    for one, other in zip(ours, run(), strict=True):
        assert torch.equal(one, other)
