"""Tests that groups of parameters have their own rate and decay on any layout, and that language models spare norms."""

import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from nemo_vfm.config import RecipeError, build, compose
from nemo_vfm.config.locate import DEFAULT_TRUST
from nemo_vfm.core.network.permission import Permissions
from nemo_vfm.core.precision import Precision
from nemo_vfm.models.adapters.low_rank_adapter import AdaptedModel, AdapterTarget, LowRankAdapter
from nemo_vfm.models.gpt import GPT
from nemo_vfm.parallel.engine.param_groups import ParamGroup, grouped_optimizer
from nemo_vfm.parallel.engine.step_runner import EngineInputs
from nemo_vfm.parallel.engine.torch_engine import TorchEngine
from nemo_vfm.parallel.plan.plan import ParallelPlan
from nemo_vfm.runtime.checks.meta_build import build_on_meta
from tests.parallel.test_gpt_layouts import Awake, Following
from tests.support.layouts import own, whole
from tests.support.ranks import on_ranks

RECIPES = [path for path in Path("recipes/llm").glob("*.yaml") if "optimizer" in path.read_text()]
GROUPS = {"no_decay": ParamGroup(parameters=["*.bias"], weight_decay=0.0),
          "slow": ParamGroup(parameters=["0.*", "absent.*"], lr_scale=0.25)}  # fmt: skip


def stepped(make: Any) -> list[torch.Tensor]:
    """Weights after three steps of an optimizer that is made of a small network."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    optimizer = make(model)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(5, 3)).pow(2).sum().backward()
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


@pytest.mark.parametrize(("kind", "more"), [
    ("AdamW", {"betas": (0.9, 0.95), "eps": 1e-6}), ("AdamW", {"fused": True}),
    ("SGD", {"options": {"momentum": 0.9, "nesterov": True}}), ("Adafactor", {}), ("RMSprop", {"foreach": True}),
], ids=str)  # fmt: skip
def test_groups_are_those_of_the_class_in_torch(kind: str, more: dict[str, Any]) -> None:
    def ours(model: nn.Module) -> torch.optim.Optimizer:
        return grouped_optimizer(model.named_parameters(), lr=0.1, weight_decay=0.3, kind=kind, groups=GROUPS, **more)

    def theirs(model: Any) -> torch.optim.Optimizer:
        slow = {"params": list(model[0].parameters()), "lr": 0.025}  # the last group that matches, for its bias, too
        groups = [{"params": [model[1].weight]}, slow, {"params": [model[1].bias], "weight_decay": 0.0}]
        given = {name: value for name, value in more.items() if name != "options"} | more.get("options", {})
        return getattr(torch.optim, kind)(groups, lr=0.1, weight_decay=0.3, **given)  # type: ignore[no-any-return]

    assert all(map(torch.equal, stepped(ours), stepped(theirs)))


def test_without_groups_it_is_the_class_itself() -> None:
    for given in ({"lr": 0.1}, {"lr": 0.1, "weight_decay": 0.5, "betas": (0.8, 0.9)}):
        ours, theirs = (stepped(lambda m, k=kind, g=given: k(m.named_parameters(), **g))
                        for kind in (grouped_optimizer, torch.optim.AdamW))  # fmt: skip
        assert all(map(torch.equal, ours, theirs))


@pytest.mark.parametrize(("given", "said"), [
    ({"kind": "Adamw"}, "torch.optim has no optimizer 'Adamw'"), ({"kind": "Optimizer"}, "has no optimizer"),
    ({"kind": "SGD", "betas": (0.9, 0.9)}, "torch.optim.SGD takes no betas"),
    ({"kind": "AdamW", "options": {"momentum": 1}}, "takes no momentum"),
    ({"kind": "Rprop", "groups": GROUPS}, "torch.optim.Rprop takes no weight_decay"),
    ({"groups": GROUPS, "params": list(nn.Linear(2, 2).parameters())}, r"pass model\.named_parameters\(\)"),
])  # fmt: skip
def test_what_an_optimizer_would_ignore_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        grouped_optimizer(**({"params": list(nn.Linear(2, 2).named_parameters()), "lr": 0.1} | given))
    with pytest.raises(ValueError, match="parameters is empty"):
        ParamGroup(parameters=[])
    with pytest.raises(ValueError, match="at least 0"):
        ParamGroup(parameters=["*"], weight_decay=-1.0)


def test_norms_biases_and_embeddings_of_language_models_do_not_decay() -> None:
    assert len(RECIPES) == 8, "the trainings of the folder"
    for recipe in RECIPES:
        assert re.search(r"optimizer: adamw_text\}|recipe:llm/", recipe.read_text()), recipe
    factory = build(compose("recipes/llm/stories.yaml")).steps["train"].optimizer
    for more in ({"qkv_bias": True, "qk_norm": True}, {"norm": "layernorm1p", "tied": True}):
        model = GPT(vocab=8, width=8, depth=2, heads=2, mlp_hidden=8, **more)
        groups = factory(list(model.named_parameters())).param_groups
        decay = {id(parameter): group["weight_decay"] for group in groups for parameter in group["params"]}
        for name, parameter in model.named_parameters():
            spared = parameter.ndim < 2 or name == "embedding.weight"
            assert decay[id(parameter)] == (0.0 if spared else 0.1), name


@pytest.mark.parametrize(("pattern", "fits"), [("embedding.weight", True), ("embeding.weight", False)])
def test_a_group_of_no_parameter_is_a_mistake_at_its_place(pattern: str, fits: bool) -> None:
    change = f"steps.train.optimizer.groups.no_decay.parameters=[{pattern}]"
    composed = compose("recipes/llm/stories.yaml", [change])
    if fits:
        build_on_meta(composed, DEFAULT_TRUST, Permissions())
        return
    with pytest.raises(RecipeError, match=r"no_decay\.parameters(.|\n)*no parameter of GPT has such a name") as found:
        build_on_meta(composed, DEFAULT_TRUST, Permissions())
    assert "embedding.weight, blocks.*.attention_norm.weight" in str(found.value)


#: As the recipes of `llm/`, and a rate of its own.
SPARED = {"no_decay": ParamGroup(parameters=["*norm.weight", "*.bias", "embedding.weight"], weight_decay=0.0),
          "slow": ParamGroup(parameters=["*.mlp.*"], lr_scale=0.25)}  # fmt: skip
MODEL = partial(Awake, vocab=96, width=48, depth=4, heads=8, mlp_hidden=64, groups=4, qk_norm=True, qkv_bias=True)
TARGETS = {"attention": AdapterTarget(modules="blocks.*.attention.*", rank=3, alpha=6.0)}


def weights(rank: int, degrees: dict[str, Any], adapted: bool, groups: Any) -> dict[str, torch.Tensor]:
    """After steps in which weight decay moves more than gradients do."""
    plan, engine = ParallelPlan(**degrees), TorchEngine()
    model = AdaptedModel(MODEL, LowRankAdapter(targets=TARGETS)) if adapted else MODEL
    optimizer = partial(grouped_optimizer, lr=1e-3, weight_decay=20.0, eps=1e-5, groups=groups)
    engine = engine.start(EngineInputs(model, Following(False), optimizer, Precision("fp32"), 3, plan))
    for index in range(3):
        engine.step([own(plan, rank, index)])
    return {name: whole(tensor).clone() for name, tensor in engine.tensors()["model"].items()}


@pytest.mark.cluster
@pytest.mark.parametrize("adapted", [False, True], ids=["whole", "adapters"])
def test_groups_are_the_same_parameters_on_every_layout(adapted: bool) -> None:
    groups = {"slow": ParamGroup(parameters=["*.qkv.*"], lr_scale=0.25, weight_decay=0.0)} if adapted else SPARED
    expected, alike = (on_ranks(1, weights, {}, adapted, one)[0] for one in (groups, None))
    assert max(float((alike[name] - expected[name]).abs().max()) for name in expected) > 1e-3, "groups matter"
    for degrees in ({"tensor": 2, "sequence": True}, {"shard": 2}, {"pipeline": 2, "microbatches": 2}):
        found = {name: one for rank in on_ranks(2, weights, degrees, adapted, groups) for name, one in rank.items()}
        assert found.keys() == expected.keys()
        for name, tensor in found.items():
            torch.testing.assert_close(tensor, expected[name], rtol=1e-3, atol=1e-4, msg=f"{degrees} {name}")
