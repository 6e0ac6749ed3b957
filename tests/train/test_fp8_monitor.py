"""Tests that layers whose numbers leave the range of FP8 are named within 20 steps, and taken out of it if asked."""

import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn

from nemo_vfm.core.fp8 import Fp8
from nemo_vfm.core.precision import Precision
from nemo_vfm.core.types.job import Run
from nemo_vfm.models.gpt import GPT
from nemo_vfm.parallel.engine.step_runner import StepRunner
from nemo_vfm.parallel.engine.torch_engine import TorchEngine
from nemo_vfm.parallel.fp8.operand_stats import OperandSummary
from nemo_vfm.parallel.fp8.use_fp8 import fp8_linears
from nemo_vfm.parallel.plan.plan import ParallelPlan
from nemo_vfm.train.callbacks import fp8_monitor
from nemo_vfm.train.callbacks.fp8_monitor import Fp8Monitor
from nemo_vfm.train.state.train_state import TrainState
from tests.parallel.test_gpt_layouts import WORDS, Following
from tests.support.layouts import EngineInputs, own
from tests.support.ranks import on_ranks

SICK = "blocks.1.mlp.down"
STEPS = 20


def outlier(x: Tensor, step: int) -> Tensor:
    return torch.cat([x[..., :5], 1000 * x[..., 5:6], x[..., 6:]], -1)


def dead(x: Tensor, step: int) -> Tensor:
    return 0 * x


def growing(x: Tensor, step: int) -> Tensor:
    return x * 1.5**step


def beyond(x: Tensor, step: int) -> Tensor:
    """Delayed scaling expects what the step before had."""
    return x * (1.0 if step % 2 else 100.0)


def tiny(rank: int, plan: ParallelPlan, spec: Fp8) -> StepRunner:
    engine = TorchEngine()
    model = partial(GPT, vocab=WORDS, width=64, depth=2, heads=4, mlp_hidden=128)
    optimizer = partial(torch.optim.AdamW, lr=1e-4)
    return engine.start(EngineInputs(model, Following(packed=False), optimizer, Precision("fp32", spec), 3, plan))


def watched(rank: int, folder: Path, fault: Any, degrees: dict[str, Any], spec: Fp8, **how: Any) -> dict[str, Any]:
    """What was said in 20 steps with a fault in the input of one linear, and which linears ended in bf16."""
    plan, said, nothing = ParallelPlan(**degrees), [], None
    engine = tiny(rank, plan, spec)
    fit = TrainState(Run(folder), engine, nothing, nothing, nothing, None, total_steps=None, plan=plan)  # type: ignore[arg-type]
    for name, linear in fp8_linears(engine.model):
        if name == SICK:
            _before(linear, lambda x: fault(x, fit.step))
    with patch.object(fp8_monitor.log, "warn", said.append):
        monitor = Fp8Monitor(every_steps=1, **how)
        monitor.on_start(fit)
        for index in range(STEPS):
            fit.result = engine.step([own(plan, rank, index)])
            fit.step += 1
            fit.metrics = {}
            monitor.on_step(fit)
    off = [name for name, linear in fp8_linears(engine.model) if not linear.is_on]
    return {"said": said, "off": off, "metrics": fit.metrics, "groups": engine.tensors()}


def _before(linear: nn.Module, change: Any) -> None:
    """Change what the linear computes with, inside of what tensor parallelism does to its input."""
    kept: Any = linear.forward
    linear.forward = lambda x: kept(change(x))  # type: ignore[method-assign]


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "recipe", "words"), [
    (outlier, "current", "has an outlier channel in its input (channel 5)"),
    (dead, "rowwise", "is dead"),
    (growing, "mxfp8", "has a growing input"),
    (beyond, "delayed", "saturates values of its input"),
], ids=["outlier", "dead", "growing", "beyond"])  # fmt: skip
def test_a_sick_layer_is_named_within_20_steps_and_no_other(tmp_path: Path, fault: Any, recipe: Any, words: str):
    found = watched(0, tmp_path, fault, {}, Fp8(recipe=recipe, history=1))
    assert any(f": {SICK} {words}" in text for text in found["said"]), found["said"]
    assert all(SICK in text for text in found["said"] if "input" in text and "dead" not in text), found["said"]
    assert not found["off"]
    lines = [json.loads(line) for line in (tmp_path / "fp8.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    assert {one["layer"] for line in lines for one in line["problems"]} >= {SICK}
    assert all(len(line["layers"]) == 10 for line in lines), "five linears in each of two blocks"


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["current", "delayed", "rowwise", "mxfp8"])
def test_nothing_is_said_of_a_healthy_training(tmp_path: Path, recipe: Any):
    found = watched(0, tmp_path, lambda x, step: x, {}, Fp8(recipe=recipe, history=16))
    assert found["said"] == []
    assert found["metrics"]["fp8_saturated"] < 0.001 and 0 < found["metrics"]["fp8_flushed"] < 0.5


@pytest.mark.cluster
@pytest.mark.parametrize("degrees", [{"tensor": 2, "sequence": True}, {"pipeline": 2, "microbatches": 2}], ids=str)
def test_every_rank_names_and_leaves_the_same_layer(tmp_path: Path, degrees: dict[str, Any]):
    first, second = on_ranks(2, watched_to_bf16, tmp_path, degrees)
    assert first["said"] and first["said"][0].endswith("from now on it computes in bf16") and not second["said"]
    assert SICK in {*first["off"], *second["off"]}
    if "tensor" in degrees:
        assert first["off"] == second["off"] == [SICK]


def watched_to_bf16(rank: int, folder: Path, degrees: dict[str, Any]) -> dict[str, Any]:
    found = watched(rank, folder, growing, degrees, Fp8(), to_bf16=True)
    return {"said": found["said"], "off": found["off"]}


def test_a_resume_leaves_in_bf16_what_was_taken_there(tmp_path: Path):
    found = watched(0, tmp_path, growing, {}, Fp8(recipe="delayed"), to_bf16=True)
    engine = tiny(0, ParallelPlan(), Fp8(recipe="delayed"))
    engine.load(found["groups"])
    assert [name for name, linear in fp8_linears(engine.model) if not linear.is_on] == found["off"] == [SICK]
    assert torch.equal(engine.tensors()["fp8"]["blocks.0.mlp.up.amax"], found["groups"]["fp8"]["blocks.0.mlp.up.amax"])


@pytest.mark.parametrize(("limit", "value", "words"), [
    ("outlier", 40.0, "an outlier channel"), ("saturated", 0.02, "saturates values of its input"),
    ("flushed", 0.3, "flushes most values"), ("growth", 2.0, "a growing input"),
])  # fmt: skip
def test_each_limit_is_the_one_that_was_given(tmp_path: Path, limit: str, value: float, words: str):
    nothing: Any = None
    model = GPT(vocab=8, width=16, depth=1, heads=2, mlp_hidden=16)
    mild = {"outlier": 100.0, "saturated": 0.1, "flushed": 0.9, "growth": 16.0}
    for given, names in ((value, True), (value * 1.05, False)):
        monitor = Fp8Monitor(**{**mild, limit: given})
        monitor.on_start(
            TrainState(Run(tmp_path), SimpleNamespace(model=model), nothing, nothing, nothing, None, total_steps=None)
        )
        looks = [OperandSummary(amax, 40.0, 1, 2.0, 30.0, 100.0) for amax in (1.0, 2.0)]
        said = [text for look in looks for _, text in monitor._problems({"a": {"input": look}})]
        assert any(words in text for text in said) is names, said


def test_a_monitor_with_nothing_to_watch_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    said: list[str] = []
    monkeypatch.setattr(fp8_monitor.log, "warn", said.append)
    model, nothing = GPT(vocab=8, width=16, depth=1, heads=2, mlp_hidden=16), None
    Fp8Monitor().on_start(
        TrainState(Run(tmp_path), SimpleNamespace(model=model), nothing, nothing, nothing, None, total_steps=None)
    )  # type: ignore[arg-type]
    assert said == ["Fp8Monitor has nothing to watch: no linear is in FP8; set precision=fp8"]
