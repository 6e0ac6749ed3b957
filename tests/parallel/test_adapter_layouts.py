"""Tests that adapters on several ranks have one device's loss and gradients."""

from functools import cache, partial
from typing import Any

import pytest
import torch
from torch import nn

from nemo_vfm.core.errors import UserError
from nemo_vfm.models.adapters.low_rank_adapter import AdaptedModel, AdapterTarget, LowRankAdapter
from nemo_vfm.models.gpt import GPT
from nemo_vfm.parallel.apply.apply_parallelism import require_divisible
from nemo_vfm.parallel.plan.adapter_split import is_adapter
from nemo_vfm.parallel.plan.plan import ParallelPlan
from tests.parallel.test_gpt_layouts import WORDS, Following
from tests.support.combinations import cases
from tests.support.layouts import GIVEN, IN_CHANNELS, cosmos_25, moved, one_device, steps, wan
from tests.support.ranks import on_ranks

pytestmark = pytest.mark.cluster  # several ranks

TARGETS = {
    "attention": AdapterTarget(modules="blocks.*.self_attention.*", rank=3, alpha=6.0),
    "text": AdapterTarget(modules="blocks.*.cross_attention.*", rank=2, alpha=4.0),
    "mlp": AdapterTarget(modules="blocks.*.mlp.*", rank=4, alpha=8.0),
}
TEXT_TARGETS = {
    "attention": AdapterTarget(modules="blocks.*.attention.*", rank=3, alpha=6.0), "mlp": TARGETS["mlp"],
}  # fmt: skip


def adapted(method: Any, model: Any) -> nn.Module:
    """With adapters that are no zeros at the start, so that each of their matrices has a gradient worth comparing."""
    targets = TEXT_TARGETS if model is gpt else TARGETS
    made: Any = AdaptedModel(model, LowRankAdapter(targets=targets, method=method))()
    made.initial_weight = partial(awake, made.initial_weight)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if is_adapter(name) and not parameter.is_meta:
                parameter.add_(moved(name, parameter.shape, torch.initial_seed()))
    return made  # type: ignore[no-any-return]


def awake(first: Any, name: str, shape: torch.Size, seed: int) -> torch.Tensor:
    weight: torch.Tensor = first(name, shape, seed)
    return weight + moved(name, shape, seed) if is_adapter(name) else weight


def gpt() -> GPT:
    """Two queries share each of four keys."""
    return GPT(vocab=WORDS, width=48, depth=4, heads=8, mlp_hidden=64, groups=4)


MODELS: dict[str, tuple[Any, Any]] = {
    "cosmos 2.5": (cosmos_25, GIVEN), "wan": (wan, IN_CHANNELS), "gpt": (gpt, Following(packed=False)),
}  # fmt: skip


@cache
def made(method: str, model: str) -> Any:
    return partial(adapted, method, MODELS[model][0])


HOW: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"tensor": 2}, {}), ({"tensor": 2, "sequence": True}, {}), ({"shard": 2}, {}), ({"context": 2}, {}),
    ({"pipeline": 2, "microbatches": 2}, {}), ({"shard": 2, "tensor": 2, "sequence": True}, {"recompute": "blocks"}),
]  # fmt: skip


@pytest.mark.parametrize(("method", "model", "degrees", "how"), cases(
    [(method, model, *how) for method in ("lora", "dora") for model in MODELS for how in HOW],
    [("lora", "gpt", *HOW[1]), ("lora", "wan", *HOW[3]), ("lora", "wan", *HOW[4]), ("dora", "cosmos 2.5", *HOW[5])],
), ids=str)  # fmt: skip
def test_adapters_have_one_devices_loss_and_gradients(
    method: str, model: str, degrees: dict[str, Any], how: dict[str, Any]
) -> None:
    build, task = made(method, model), MODELS[model][1]
    expected = one_device(build, task)
    assert expected["gradients"] and all(expected["gradients"]), "every matrix has a part in the output"
    for found in on_ranks(ParallelPlan(**degrees).world, steps, degrees, how, 2, build, task):
        for name, rel in (("loss", 1e-5), ("norm", 1e-4), ("validation", 1e-5)):
            assert found[name] == pytest.approx(expected[name], rel=rel), name
        if "pipeline" not in degrees:  # there each rank has gradients of its own blocks alone
            assert found["gradients"] == pytest.approx(expected["gradients"], rel=1e-4)


def test_tensor_ranks_that_would_share_a_key_are_refused_for_an_adapter_of_it() -> None:
    with torch.device("meta"):
        model = adapted("lora", gpt)
    require_divisible(model, ParallelPlan(tensor=4))
    with pytest.raises(UserError, match="an adapter of q, k, v cannot be split over 8 tensor ranks: there are 4 heads"):
        require_divisible(model, ParallelPlan(tensor=8))
