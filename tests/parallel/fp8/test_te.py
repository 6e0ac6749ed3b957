"""Tests Transformer Engine in our linears: on a GPU its numbers, on a CPU the calls and what is refused."""

import importlib
import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from nemo_vfm.core.errors import MissingPackage, UserError
from nemo_vfm.core.fp8 import Fp8, Recipe
from nemo_vfm.core.optional import available
from nemo_vfm.core.precision import Precision
from nemo_vfm.parallel.engine.history_updater import HistoryUpdater
from nemo_vfm.parallel.engine.torch_engine import TorchEngine
from nemo_vfm.parallel.fp8 import fp8_linear, use_fp8
from nemo_vfm.parallel.fp8.amax_history import AmaxHistory
from nemo_vfm.parallel.fp8.fp8_linear import Fp8Linear, to_fp8
from nemo_vfm.parallel.fp8.operand_stats import OperandStats
from nemo_vfm.parallel.fp8.operands import Operands
from nemo_vfm.parallel.fp8.use_fp8 import require_hardware
from nemo_vfm.parallel.plan.plan import ParallelPlan
from tests.support import stand_in_te

on_a_gpu = pytest.mark.skipif(
    not (torch.cuda.is_available() and available("transformer_engine")), reason="needs a GPU and Transformer Engine"
)


def trained(recipe: Recipe, kernels: str, call: Callable[..., Tensor] = lambda layer, x: layer(x)) -> dict[str, Tensor]:
    torch.manual_seed(0)
    layer = to_fp8(nn.Linear(256, 384, device="cuda"), Fp8(recipe=recipe, kernels=kernels, history=4))  # type: ignore[arg-type]
    layer.stats, found = OperandStats(), {}
    for step, size in enumerate((1.0, 3.0, 2.0)):
        x = torch.randn(200, 256, device="cuda").mul_(size).requires_grad_()
        with torch.autocast("cuda", torch.bfloat16):
            y = call(layer, x)
        (y.float() ** 2).mean().backward()  # type: ignore[no-untyped-call]
        HistoryUpdater(layer, None).apply()
        assert x.grad is not None and layer.weight.grad is not None
        found |= {f"y {step}": y.detach(), f"dx {step}": x.grad, f"dw {step}": layer.weight.grad.clone()}
    return found | _history(layer) | {f"seen {role}": counts for role, counts in layer.stats.counts.items()}


def _history(layer: Fp8Linear) -> dict[str, Tensor]:
    return {} if layer.history is None else {"amax": layer.history.amax, "factor": layer.history.factor}


@on_a_gpu
@pytest.mark.parametrize("recipe", ["current", "delayed", "block"])
def test_a_linear_has_the_numbers_that_torchs_kernels_give_it(recipe: Recipe) -> None:
    ours, theirs = trained(recipe, "torch"), trained(recipe, "te")
    for name, one in ours.items():
        if name in ("amax", "factor") or name.startswith("seen"):
            assert torch.equal(one, theirs[name]), name
        else:  # sums differ by their order, and are rounded to bf16
            assert float((one.float() - theirs[name].float()).norm() / one.float().norm()) < 2e-3, name


@on_a_gpu
def test_a_block_that_is_computed_again_changes_nothing() -> None:
    again = trained("delayed", "te", lambda layer, x: checkpoint(layer, x, use_reentrant=False))
    for name, one in trained("delayed", "te").items():
        assert name.startswith("seen") or torch.equal(one, again[name]), name


@pytest.mark.parametrize("frozen", ["nothing", "weight", "input"])
@pytest.mark.parametrize("is_copy", [False, True], ids=["own weight", "cast weight"])
@pytest.mark.parametrize("recipe", ["current", "delayed", "block", "mxfp8"])
def test_calls_are_those_that_give_the_three_products(
    recipe: Recipe, is_copy: bool, frozen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a stand-in of our own numerics, which a CPU can run."""
    stand_in_te.install(monkeypatch)
    te = importlib.import_module("nemo_vfm.parallel.fp8.te")
    monkeypatch.delitem(sys.modules, te.__name__)
    found = []
    for apply in (fp8_linear._Products.apply, te.TeProducts.apply):
        torch.manual_seed(0)
        spec = Fp8(recipe=recipe, history=4)
        history = AmaxHistory(spec) if recipe == "delayed" else None
        operands = Operands(spec, history, stats=OperandStats(), weight_is_copy=is_copy)
        x = torch.randn(128, 256, requires_grad=frozen != "input")
        weight = torch.randn(128, 256, requires_grad=frozen != "weight")
        y = apply(x, weight, operands)
        y.backward(torch.randn(128, 128))
        assert operands.stats is not None
        found.append([y.detach(), x.grad, weight.grad, *operands.stats.counts.values(), getattr(history, "amax", None)])
    for one, other in zip(*found, strict=True):
        assert (one is None and other is None) or torch.equal(one, other)


def test_scales_of_rows_are_refused_with_what_would_do() -> None:
    with pytest.raises(ValueError, match="no row scales; use kernels=torch, or recipe=current"):
        Fp8(recipe="rowwise", kernels="te")


@pytest.mark.parametrize(("error", "kind"), [
    (MissingPackage("not here"), MissingPackage), (RuntimeError("Found empty meta package"), UserError),
    (OSError("libcudnn_cnn.so.9: undefined symbol"), UserError),
], ids=["none", "empty", "another cuDNN"])  # fmt: skip
def test_where_it_cannot_be_imported_one_sentence_says_so(
    error: Exception, kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(use_fp8, "device", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr(use_fp8, "require", fail)
    require_hardware(Fp8())
    with pytest.raises(kind, match=str(error)) as raised:
        require_hardware(Fp8(kernels="te"))
    assert kind is MissingPackage or "or use precision.fp8.kernels=torch" in str(raised.value)


def test_it_is_refused_with_what_it_cannot_do_before_anything_begins() -> None:
    plan, chosen = ParallelPlan(), Precision("bf16", Fp8(kernels="te"))
    zero_bubble = ParallelPlan(pipeline=2, virtual=2, microbatches=2, schedule="zero_bubble")
    assert "use precision.fp8.kernels: torch" in TorchEngine(compile=True).objection(plan, chosen)
    assert "use precision.fp8.kernels: torch" in TorchEngine().objection(zero_bubble, chosen)
    assert not TorchEngine().objection(plan, chosen)
    assert not TorchEngine().objection(zero_bubble, Precision("bf16", Fp8()))
    assert "engine.compile fuses" in TorchEngine(compile=True).objection(zero_bubble, Precision("bf16"))
    assert not TorchEngine(compile=True).objection(plan, Precision("bf16", Fp8()))
