"""Tests that a step's MFU counts FLOPs by the requested convention, and that the run folder names it."""

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nemo_vfm.core.types.job import Run
from nemo_vfm.models.gpt import GPT
from nemo_vfm.parallel.engine.step_runner import StepResult
from nemo_vfm.parallel.plan.plan import ParallelPlan
from nemo_vfm.perf import flops
from nemo_vfm.perf.flops import PeakFlops
from nemo_vfm.train.callbacks import throughput
from nemo_vfm.train.callbacks.throughput import Throughput
from nemo_vfm.train.state.train_state import TrainState

WIDTH, LENGTH, ROWS, WORDS = 32, 64, 2, 100
MODEL = GPT(vocab=WORDS, width=WIDTH, depth=1, heads=4, mlp_hidden=48)
ATTENTION = 4 * ROWS * LENGTH**2 * WIDTH
LINEARS = 2 * ROWS * LENGTH * WIDTH * (4 * WIDTH + 3 * 48 + WORDS)


def steps(
    folder: Path, monkeypatch: pytest.MonkeyPatch, plan: ParallelPlan, seconds: Sequence[float], **options: Any
) -> dict[str, float]:
    """The metrics of the last of steps that take so many seconds, on a machine of a million FLOP/s."""
    clock = itertools.accumulate(seconds, initial=0.0)
    monkeypatch.setattr(throughput.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(flops, "peak_flops", lambda: PeakFlops(1e6, "a test"))
    nothing: Any = None
    fit = TrainState(
        Run(folder), SimpleNamespace(model=MODEL), nothing, nothing, nothing, None, total_steps=None, plan=plan
    )
    callback = Throughput(**options)
    callback.on_start(fit)
    fit.result = StepResult(1.0, 1.0, 1.0, ROWS, [{"tokens_BS": (ROWS, LENGTH)}])
    for _ in seconds:
        callback.on_step(fit)
    return fit.metrics


def one_step(folder: Path, monkeypatch: pytest.MonkeyPatch, plan: ParallelPlan, **options: Any) -> float:
    """The mfu of a step of two seconds on a machine of a million FLOP/s."""
    return steps(folder, monkeypatch, plan, [2.0], **options)["mfu"]


def test_rates_are_those_of_the_last_steps_of_the_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for window, seconds in ((1, 1.0), (2, 4.0), (9, 9.0)):
        found = steps(tmp_path, monkeypatch, ParallelPlan(), [5.0, 3.0, 1.0], window_steps=window)
        rows = ROWS * min(window, 3)
        assert found["samples_per_s"] == pytest.approx(rows / seconds)
        assert found["tokens_per_s"] == pytest.approx(LENGTH * rows / seconds)
        assert found["mfu"] == pytest.approx(3 * (LINEARS + ATTENTION) * min(window, 3) / seconds / 1e6)


def test_mfu_counts_causal_attention_as_asked_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    full = one_step(tmp_path, monkeypatch, ParallelPlan())
    assert full == pytest.approx(3 * (LINEARS + ATTENTION) / 2 / 1e6)
    said = json.loads((tmp_path / "mfu.json").read_text())
    assert "including the masked half" in said["formula"] and "1e-06 TFLOP/s (a test)" in said["peak"]
    causal = one_step(tmp_path, monkeypatch, ParallelPlan(), causal_attention="causal")
    assert causal == pytest.approx(3 * (LINEARS + ATTENTION / 2) / 2 / 1e6)
    assert "unmasked half" in json.loads((tmp_path / "mfu.json").read_text())["formula"]


def test_ranks_of_one_slice_share_its_arithmetic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    alone = one_step(tmp_path, monkeypatch, ParallelPlan())
    assert one_step(tmp_path, monkeypatch, ParallelPlan(tensor=2, shard=2)) == pytest.approx(alone / 2)


def test_a_convention_that_there_is_not_is_refused():
    with pytest.raises(ValueError, match="full or causal, got 'half'"):
        Throughput(causal_attention="half")  # type: ignore[arg-type]
