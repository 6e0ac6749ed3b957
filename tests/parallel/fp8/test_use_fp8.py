"""Tests which linears of each model go into FP8, and that models train with them as they do without."""

import copy
from functools import partial

import pytest
import torch
from torch import nn

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.fp8 import RECIPES, Fp8, Recipe
from nemo_vfm.core.precision import Precision
from nemo_vfm.models.adapters.low_rank_adapter import AdaptedModel, AdapterTarget, LowRankAdapter
from nemo_vfm.models.dit import DiT
from nemo_vfm.models.gpt import GPT
from nemo_vfm.models.st_dit import STDiT
from nemo_vfm.parallel.engine.history_updater import HistoryUpdater
from nemo_vfm.parallel.engine.step_runner import EngineInputs, StepRunner
from nemo_vfm.parallel.engine.torch_engine import TorchEngine
from nemo_vfm.parallel.fp8.fp8_linear import Fp8Linear
from nemo_vfm.parallel.fp8.use_fp8 import use_fp8
from nemo_vfm.parallel.plan.plan import ParallelPlan
from tests.support.layouts import Awake, Doubling, own


def gpt(depth: int = 3) -> GPT:
    torch.manual_seed(0)
    return GPT(vocab=128, width=128, depth=depth, heads=4, mlp_hidden=256)


def dit(kind: type[DiT]) -> DiT:
    torch.manual_seed(0)
    return kind(in_channels=4, width=128, depth=2, heads=4, text_dim=128, patch=(1, 2, 2))


@pytest.mark.parametrize(("model", "of_a_block"), [(gpt(2), 5), (dit(DiT), 7), (dit(STDiT), None)])
def test_the_large_linears_of_blocks_and_nothing_else(model: nn.Module, of_a_block: int | None) -> None:
    before = dict(model.named_parameters())
    names = use_fp8(model, Fp8())
    assert names and all(name.startswith("blocks.") for name in names)
    assert of_a_block is None or len(names) == 2 * of_a_block
    assert not any(word in name for name in names for word in ("norm", "modulation", "embedding", "head"))
    large = {name for name, module in model.named_modules() if isinstance(module, Fp8Linear)}
    assert large == set(names)
    after = dict(model.named_parameters())
    assert after.keys() == before.keys() and all(after[name] is before[name] for name in before)


def test_the_ends_stay_in_bf16() -> None:
    model = gpt(4)
    names = use_fp8(model, Fp8(first_bf16=1, last_bf16=2))
    assert {name.split(".")[1] for name in names} == {"1"}
    with pytest.raises(UserError, match=r"first_bf16 \(3\) and last_bf16 \(1\) leave none of 4 blocks"):
        use_fp8(gpt(4), Fp8(first_bf16=3, last_bf16=1))


def test_a_model_of_another_size_or_without_a_plan_is_refused_and_unchanged() -> None:
    odd = GPT(vocab=128, width=72, depth=1, heads=2, mlp_hidden=256)
    with pytest.raises(UserError, match="has 72 in_features on each rank, but FP8 by recipe=current needs multiples"):
        use_fp8(odd, Fp8())
    with pytest.raises(UserError, match="has 72 out_features on each rank"):
        use_fp8(GPT(vocab=128, width=48, depth=1, heads=2, mlp_hidden=64), Fp8(), tensor=2)
    assert not any(isinstance(module, Fp8Linear) for module in odd.modules())
    with pytest.raises(UserError, match="Sequential has no plan"):
        use_fp8(nn.Sequential(nn.Linear(16, 16)), Fp8())


def losses(model: GPT, steps: int) -> list[float]:
    random, found = torch.Generator().manual_seed(1), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for _ in range(steps):
        start = torch.randint(128, (8, 1), generator=random)
        step = torch.randint(1, 4, (8, 1), generator=random)
        tokens = (start + step * torch.arange(33)) % 128
        loss = model(tokens_BS=tokens[:, :-1], labels_BS=tokens[:, 1:]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        HistoryUpdater(model, None).apply()
        found.append(loss.item())
    return found


@pytest.fixture(scope="module")
def in_fp32() -> list[float]:
    return losses(gpt(2), 24)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_language_model_learns_as_it_does_in_fp32(recipe: Recipe, in_fp32: list[float]) -> None:
    model = gpt(2)
    use_fp8(model, Fp8(recipe=recipe, history=16))
    found = losses(model, 24)
    assert in_fp32[-1] < 0.7 * in_fp32[0]
    assert sum(found[-12:]) == pytest.approx(sum(in_fp32[-12:]), rel=0.03) and found != in_fp32


def test_a_copy_of_a_model_in_fp8_computes_what_the_model_does() -> None:
    model = gpt(1)
    use_fp8(model, Fp8(recipe="delayed"))
    losses(model, 2)
    given = {"tokens_BS": torch.arange(32)[None], "labels_BS": torch.arange(1, 33)[None]}
    assert torch.equal(copy.deepcopy(model)(**given), model(**given))


def started() -> StepRunner:
    engine, model = TorchEngine(), partial(Awake, in_channels=4, text_dim=16, width=64, depth=1, heads=4)
    precision = Precision("fp32", Fp8(recipe="delayed", history=4))
    engine = engine.start(
        EngineInputs(model, Doubling(), partial(torch.optim.AdamW, lr=1e-3), precision, 3, ParallelPlan())
    )
    return engine


def test_a_training_goes_on_with_the_histories_that_it_kept_and_only_with_them() -> None:
    engine = started()
    for index in range(2):
        engine.step([own(ParallelPlan(), 0, index)])
    kept = {name: {key: tensor.clone() for key, tensor in group.items()} for name, group in engine.tensors().items()}
    assert all(tensor.any() for tensor in kept["fp8"].values()), "there is something to lose"
    expected = engine.step([own(ParallelPlan(), 0, 2)])
    resumed, bare = started(), started()
    resumed.load(kept)
    bare.load({name: group for name, group in kept.items() if name != "fp8"})
    assert resumed.step([own(ParallelPlan(), 0, 2)]) == expected != bare.step([own(ParallelPlan(), 0, 2)])
    again = resumed.tensors()["fp8"]
    assert all(torch.equal(tensor, again[name]) for name, tensor in engine.tensors()["fp8"].items())


def test_adapters_learn_beside_a_frozen_base_in_fp8() -> None:
    targets = {"mlp": AdapterTarget(modules="blocks.*.mlp.up", rank=4, alpha=4.0)}
    torch.manual_seed(0)
    model = AdaptedModel(lambda: gpt(1), LowRankAdapter(targets=targets))()
    for parameter in model.parameters():
        if parameter.requires_grad:
            nn.init.normal_(parameter, std=0.1)
    given = {"tokens_BS": torch.arange(32)[None], "labels_BS": torch.arange(1, 33)[None]}
    before = model(**given).mean()
    assert "blocks.0.mlp.up" in use_fp8(model, Fp8())
    after = model(**given).mean()
    after.backward()
    assert after.item() == pytest.approx(before.item(), rel=0.02) and not torch.equal(after, before)
    learning = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert learning and all(".adapters." in name for name in learning)
