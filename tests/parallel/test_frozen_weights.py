"""Tests that a frozen model is stored narrow without another bit changed, and that only its adapters are saved."""

from functools import partial
from typing import Any

import pytest
import torch

from nemo_vfm.core.errors import CorruptCheckpoint
from nemo_vfm.core.precision import Precision
from nemo_vfm.models.adapters.low_rank_adapter import AdaptedModel, AdapterTarget, LowRankAdapter, begin
from nemo_vfm.models.gpt import GPT
from nemo_vfm.models.wan import Wan
from nemo_vfm.parallel.checkpoint.checkpoint_reader import fill
from nemo_vfm.parallel.engine import model_start
from nemo_vfm.parallel.engine.step_runner import EngineInputs
from nemo_vfm.parallel.engine.torch_engine import TorchEngine
from nemo_vfm.parallel.plan.adapter_split import is_adapter
from nemo_vfm.parallel.plan.plan import ParallelPlan
from tests.support.measured_step import MadeUp, made_up

gpt = partial(GPT, vocab=64, width=32, depth=2, heads=2, mlp_hidden=64)
wan = partial(Wan, in_channels=4, text_dim=16, width=32, depth=2, heads=2, mlp_hidden=64)
MODELS: dict[str, tuple[Any, dict[str, tuple[int, ...]], str]] = {
    "gpt": (gpt, {"tokens_BS": (1, 16)}, "attention"),
    "wan": (wan, {"latents_BCTHW": (1, 4, 2, 4, 4), "text_BLD": (1, 5, 16)}, "self_attention"),
}


def awake(build: Any) -> torch.nn.Module:
    """Without zeros: a model that begins at zero has no gradients in its blocks."""
    model: torch.nn.Module = build()
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def started(name: str, method: Any, *, rank: int = 4) -> tuple[TorchEngine, Any]:
    build, shapes, attention = MODELS[name]
    targets = {kind: AdapterTarget(modules=f"blocks.*.{kind}.*", rank=rank, alpha=8.0) for kind in (attention, "mlp")}
    engine = TorchEngine()
    model = AdaptedModel(partial(awake, build), LowRankAdapter(targets=targets, method=method))
    optimizer = partial(torch.optim.AdamW, lr=1e-2)
    engine = engine.start(EngineInputs(model, MadeUp(), optimizer, Precision("bf16"), 0, ParallelPlan()))
    begin(engine.model)
    return engine, made_up(shapes, 2)


def learned(name: str) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Losses and gradient norms of three steps, and the adapters after them."""
    engine, batch = started(name, "lora")
    steps = [engine.step([batch]) for _ in range(3)]
    return [n for one in steps for n in (one.loss, one.grad_norm)], engine.tensors()["model"]


@pytest.mark.parametrize("name", MODELS)
def test_frozen_linears_in_bf16_change_no_bit_of_a_training(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    narrow = learned(name)
    monkeypatch.setattr(model_start, "cast_weights", lambda *_: False)
    wide = learned(name)
    assert narrow[0] == wide[0] and len(set(narrow[0])) == 6, "and it learns"
    assert all(torch.equal(narrow[1][one], wide[1][one]) for one in wide[1])


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("method", ["lora", "dora"])
def test_linears_are_bf16_and_all_that_learns_or_is_no_linear_is_fp32(name: str, method: Any) -> None:
    engine, _ = started(name, method)
    dtypes = {one: parameter.dtype for one, parameter in engine.model.named_parameters()}
    linears = {one for one in dtypes if ".mlp." in one and not is_adapter(one)}
    assert linears and {dtypes[one] for one in linears} == {torch.bfloat16}
    others = [one for one in dtypes if is_adapter(one) or "norm" in one or "table" in one]
    assert others and all(dtypes[one] == torch.float32 for one in others)


def test_a_checkpoint_has_adapters_alone_and_fits_no_others() -> None:
    engine, batch = started("gpt", "lora")
    engine.step([batch])
    saved = engine.tensors()
    assert saved["model"] and all(map(is_adapter, saved["model"]))
    again, _ = started("gpt", "lora")
    again.load(saved)
    assert all(torch.equal(saved["model"][one], tensor) for one, tensor in again.tensors()["model"].items())
    for other in (started("gpt", "lora", rank=2), started("gpt", "dora")):
        with pytest.raises(CorruptCheckpoint, match="is from another model"):
            other[0].load(saved)
    with pytest.raises(CorruptCheckpoint, match="holds only adapters"):
        fill(gpt().state_dict(), saved["model"])
