"""Tests that children of a model learn in turns as they do in plain torch, and that a refused turn undoes a step."""

import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from nemo_vfm.config import RecipeError, compose
from nemo_vfm.config.locate import DEFAULT_TRUST
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.fp8 import Fp8
from nemo_vfm.core.network.permission import Permissions
from nemo_vfm.core.precision import Precision
from nemo_vfm.core.types.job import Run
from nemo_vfm.core.types.task import ModelInputs
from nemo_vfm.parallel.apply.build_model import build_model
from nemo_vfm.parallel.engine.nonfinite_guard import NonFinite
from nemo_vfm.parallel.engine.step_runner import EngineInputs, StepRunner
from nemo_vfm.parallel.engine.torch_engine import TorchEngine
from nemo_vfm.parallel.engine.turns import turn_objections
from nemo_vfm.parallel.plan.plan import ParallelPlan
from nemo_vfm.parallel.plan.static_memory import state_of
from nemo_vfm.runtime.checks.meta_build import build_on_meta
from tests.support.layouts import whole
from tests.support.ranks import on_ranks
from tests.support.toy import WIDTH, ToyData, ToyTask
from tests.train.test_job import lines, train

CLIP, TURNS = 0.5, ("discriminator", "generator")
OPTIMIZERS = {"discriminator": partial(torch.optim.SGD, lr=0.5, momentum=0.9),
              "generator": partial(torch.optim.AdamW, lr=0.1)}  # fmt: skip
SHARDED = pytest.param({"shard": 2}, marks=pytest.mark.cluster)  # several ranks


class Rivals(nn.Module):
    """Scores of real samples and of made ones, (B, 2)."""

    def __init__(self) -> None:
        super().__init__()
        self.generator, self.discriminator = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)
        self.register_buffer("calls", torch.zeros(()))
        self.learning: list[list[str]] = []

    def forward(self, x: Tensor) -> Tensor:
        self.get_buffer("calls").add_(1)
        self.learning.append([name for name in TURNS if getattr(self, name).weight.requires_grad])
        return torch.cat([self.discriminator(x), self.discriminator(self.generator(x))], 1)


class Rivalry(ToyTask):
    bad = -1  #: a batch at which the generator's loss is no number

    def prepare(self, batch: Any, *, seed: int, training: bool) -> ModelInputs:
        made = super().prepare(batch, seed=seed, training=training)
        made.targets["factor"] = torch.tensor(math.nan if batch.index == self.bad else 1.0)
        return made

    def turn_losses(self, turn: str, output: Tensor, prepared: ModelInputs) -> Tensor:
        if turn == "generator":
            return F.softplus(-output[:, 1]) * prepared.targets["factor"]
        return F.softplus(-output[:, 0]) + F.softplus(output[:, 1])


def started(plan: ParallelPlan = ParallelPlan(), task: Any = None, **how: Any) -> StepRunner:
    engine = TorchEngine(clip_norm=CLIP, nonfinite=NonFinite(action="skip"), **how)
    return engine.start(EngineInputs(Rivals, task or Rivalry(), OPTIMIZERS, Precision("fp32"), 3, plan))


def own(plan: ParallelPlan, rank: int, index: int) -> Any:
    (data := ToyData()).start(seed=1, first_batch=index, rank=plan.data_rank(rank), num_ranks=plan.data)
    batch = next(iter(data.train_dataloader()))
    batch.weight_B.copy_(torch.arange(1.0, 5.0).chunk(plan.data)[plan.data_rank(rank)])
    return batch


def state(engine: StepRunner) -> dict[str, Tensor]:
    return {
        f"{group}/{name}": whole(one).clone() for group, own in engine.tensors().items() for name, one in own.items()
    }


def steps(rank: int, degrees: dict[str, Any]) -> tuple[list[dict[str, float]], dict[str, Tensor]]:
    engine = started(plan := ParallelPlan(**degrees))
    figures = [dict(engine.step([own(plan, rank, index)]).turns) for index in range(3)]
    assert engine.model.learning == 3 * [["discriminator"], ["generator"]]
    assert all(parameter.requires_grad for parameter in engine.model.parameters())
    return figures, state(engine)


@pytest.mark.parametrize("degrees", [{}, SHARDED])
def test_each_child_learns_in_its_turn_from_the_others_newest_weights(degrees: dict[str, Any]) -> None:
    (figures, found), *_ = on_ranks(2 if degrees else 1, steps, degrees)
    model, task = build_model(Rivals, 3), Rivalry()
    made = {turn: OPTIMIZERS[turn](getattr(model, turn).parameters()) for turn in TURNS}
    for index, turn in ((index, turn) for index in range(3) for turn in TURNS):
        prepared = task.prepare(own(ParallelPlan(), 0, index), seed=3, training=True)
        losses_B = task.turn_losses(turn, model(**prepared.inputs), prepared)
        loss = (losses_B * prepared.weight_B).sum() / prepared.weight_B.sum()
        parameters = list(getattr(model, turn).parameters())
        for parameter, grad in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            parameter.grad = grad
        norm = nn.utils.clip_grad_norm_(parameters, CLIP)
        made[turn].step()
        assert figures[index].pop(f"loss_{turn}") == pytest.approx(loss.item(), rel=1e-5)
        assert figures[index].pop(f"grad_norm_{turn}") == pytest.approx(norm.item(), rel=1e-5)
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(found[f"model/{name}"], tensor, rtol=1e-5, atol=1e-6)


def refused(rank: int, degrees: dict[str, Any], bad: int, offload: bool) -> None:
    plan = ParallelPlan(**degrees)
    engine, other = (started(plan, offload_optimizer=offload) for _ in range(2))
    engine.parts.task.bad = bad  # type: ignore[attr-defined]
    for index in range(4):
        results = [one.step([own(plan, rank, index)]) for one in (engine, other)[: 1 if index == bad else 2]]
        assert (results[0].lr == 0) == (index == bad) and math.isfinite(results[0].turns["loss_discriminator"])
        found, expected = state(engine), state(other)
        assert found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize(("bad", "offload"), [(0, False), (2, True)])
@pytest.mark.parametrize("degrees", [{}, SHARDED])
def test_a_refused_turn_takes_those_before_it_back(degrees: dict[str, Any], bad: int, offload: bool) -> None:
    on_ranks(2 if degrees else 1, refused, degrees, bad, offload)


def test_a_resumed_training_has_the_bits_of_one_that_never_stopped(tmp_path: Path) -> None:
    found, parts = {}, {"model": Rivals, "task": Rivalry(), "optimizer": OPTIMIZERS, "every_steps": 2}
    for name, count in (("whole", 4), ("parts", 2), ("parts", 4)):
        train(f"{count} steps", **parts).run(Run(run := tmp_path / name, seed=3, resume=True))
        sums = [line["loss_discriminator"] + line["loss_generator"] for line in lines(run)]
        assert sums == [line["loss"] for line in lines(run)] and lines(run)[-1]["grad_norm_generator"] > 0
        files = {one.stem: load_file(one) for one in (run / f"checkpoints/step-{count:08d}").glob("*.safetensors")}
        found[name] = sums, {name: {key: one.tolist() for key, one in file.items()} for name, file in files.items()}
    assert files.keys() == {"ema", "model", *(f"optimizer_{turn}" for turn in TURNS)} and len(sums) == 4
    assert found["whole"] == found["parts"]


def test_what_cannot_take_turns_is_refused_at_its_key() -> None:
    tied: Any = Rivals()
    tied.scale, tied.discriminator.gain = nn.Parameter(torch.ones(1)), tied.generator.weight
    plan, names = ParallelPlan(tensor=2), OPTIMIZERS | {"critic": OPTIMIZERS["generator"]}
    said = list(turn_objections(tied, names, ToyTask(), plan, Precision("bf16", Fp8())))
    assert [key for key, _ in said] == [*3 * ["optimizer"], "task", "parallel", "precision"]
    assert "no such child; it has generator, discriminator" in said[0][1] and "updates scale" in said[1][1]
    assert "generator.weight and discriminator.gain are one parameter" in said[2][1]
    with pytest.raises(UserError, match="ToyTask has no method turn_losses"):
        started(task=ToyTask())
    assert state_of(Rivals, OPTIMIZERS)[1]["copies of earlier turns"] == 2 * 4 * (WIDTH + 1), "weights and momentum"
    sides = [f"steps.train.optimizer.{side}={{_target_: torch.optim.AdamW}}" for side in ("encoder", "decoder")]
    composed = compose("recipes/diffusion/train_autoencoder.yaml", ["~steps.train.optimizer", *sides])
    with pytest.raises(RecipeError, match=r"steps\.train\.task(.|\n)*Reconstruct has no method turn_losses"):
        build_on_meta(composed, DEFAULT_TRUST, Permissions())
