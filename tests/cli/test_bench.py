"""Tests what `nemo-vfm bench` measures, of which step, and beside which prediction."""

import json
from pathlib import Path
from typing import Any

import pytest

from nemo_vfm.cli.benching.bench_table import compared
from nemo_vfm.cli.main import main
from nemo_vfm.perf.step_kinds import KINDS

SMALL = ["data=mock", "--overlay", "smoke", "--steps", "3", "--warm-up", "1"]
#: Of a size at which what a step holds is more than what Python does besides.
GPT = ["model.width=128", "model.depth=3", "model.mlp_hidden=256", "data.sequence_length=256", "precision=fp32"]


def measured(tmp_path: Path, *words: str) -> dict[str, Any]:
    assert main(["bench", "--json", str(tmp_path / "bench.json"), words[0], *SMALL, *words[1:]]) == 0
    found: dict[str, Any] = json.loads((tmp_path / "bench.json").read_text())
    return found


def sampled(tmp_path: Path, *words: str) -> dict[str, Any]:
    small = ["--overlay", "smoke", "--steps", "3", "--warm-up", "1", "--json", str(tmp_path / "bench.json")]
    assert main(["bench", *words, *small]) == 0
    found: dict[str, Any] = json.loads((tmp_path / "bench.json").read_text())
    return found


def test_a_bench_measures_time_memory_and_kinds_and_keeps_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    found = measured(tmp_path, "llm/nemotron4_1b", *GPT, "--profile", "--report", str(tmp_path / "bench.html"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bench.html", "bench.json"]
    assert "bytes that plan says" in (tmp_path / "bench.html").read_text()
    low, high = found["spread_s"]
    assert 0 < low <= found["step_s"] <= high * 1.001 and found["steps"] == 3
    assert found["tokens_per_s"] == pytest.approx(2 * 256 / found["step_s"])
    assert found["samples_per_s"] == pytest.approx(2 / found["step_s"])
    assert found["kinds_s"].keys() == set(KINDS)
    assert sum(found["kinds_s"].values()) == pytest.approx(found["step_s"])
    assert min(found["kinds_s"][kind] for kind in ("products", "attention", "loss", "optimizer")) > 0
    assert len(found["largest"]) == 10
    assert 0 < found["mfu"] < found["hfu"], "the recipe recomputes blocks"
    assert found["start_s"] == pytest.approx(sum(found["start_parts_s"].values()))
    assert found["peak_bytes"] == pytest.approx(found["planned_bytes"], rel=0.05)
    said = capsys.readouterr().out
    assert "tokens a second" in said and "norms and pointwise" in said and "plan says" in said


def test_of_a_workflow_the_training_alone_is_measured_and_other_steps_need_nothing(tmp_path: Path) -> None:
    found = measured(tmp_path, "recommendation/dlrm_criteo")
    assert found["samples_per_s"] == pytest.approx(32 / found["step_s"]) and found["tokens_per_s"] is None
    assert found["kinds_s"] == {} and found["parameters"] > 0


def test_of_sampling_a_step_is_a_call_of_the_network_and_no_checkpoint_is_needed(tmp_path: Path) -> None:
    given = ["pipeline.sampler.steps=4", "batch_size=2"]
    found = sampled(tmp_path, "diffusion/sample", *given, "--profile")
    assert found["samples_per_s"] == pytest.approx(2 / (4 * found["step_s"])) and found["planned_bytes"] is None
    assert found["inputs"]["latents_BCTHW"][0] == 4, "under guidance each video twice"
    assert sum(found["kinds_s"].values()) == pytest.approx(found["step_s"])
    assert 0 < found["mfu"] == found["hfu"]
    deep = sampled(tmp_path, "diffusion/sample", *given, "model.depth=9")
    assert deep["mfu"] * deep["step_s"] > 3 * found["mfu"] * found["step_s"], "the peak is measured once a process"


def test_of_generating_a_step_is_a_token_of_each_text(tmp_path: Path) -> None:
    found = sampled(tmp_path, "llm/stories", "data=mock", "--step", "write", "steps.write.max_tokens=8")
    assert found["tokens_per_s"] == pytest.approx(16 / found["step_s"])
    assert found["samples_per_s"] == pytest.approx(16 / 8 / found["step_s"])


def test_made_up_latents_are_as_large_as_is_said(tmp_path: Path) -> None:
    found = measured(tmp_path, "diffusion/dit_7b_8k", "--latents", "4,8,8", "--gpus", "1")
    small = measured(tmp_path, "diffusion/dit_7b_8k", "mock_data.latents=[[2,4,4]]")
    assert found["peak_bytes"] > 1.1 * small["peak_bytes"]
    assert found["planned_bytes"] > 1.1 * small["planned_bytes"], "of the inputs that were measured"
    assert found["inputs"]["latents_BCTHW"][2:] == [4, 8, 8]


@pytest.mark.parametrize(("words", "said"), [
    (["curation/clips"], "neither trains nor samples nor generates texts"),
    (["recommendation/daily"], "trains in 2 steps; name one: --step train_1 or --step train_2"),
    (["llm/stories", "--step", "tokens"], "has nothing of this name to measure, only train"),
    (["llm/nemotron4_1b", "--step", "train"], "only one that is the recipe itself; drop --step"),
    (["llm/nemotron4_1b", "--steps", "0"], "must be at least 1"),
])  # fmt: skip
def test_what_cannot_be_measured_is_refused(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *words]) == 2
    assert said in capsys.readouterr().err


def test_two_sides_are_compared_round_by_round() -> None:
    sides = {"as it is": [{"step_s": 2.0, "peak_bytes": 8}, {"step_s": 6.0, "peak_bytes": 8}],
             "changed": [{"step_s": 1.0, "peak_bytes": 4}, {"step_s": 2.0, "peak_bytes": 4}]}  # fmt: skip
    found = compared(sides)
    assert found["speedup"] == 2.5 and found["speedups"] == [2.0, 3.0]
    assert (found["a_step_s"], found["b_step_s"], found["b_peak_bytes"]) == (4.0, 1.5, 4)
    assert (found["a_is"], found["b_is"]) == ("as it is", "changed")


@pytest.mark.slow  # four processes
def test_two_sides_run_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = measured(tmp_path, "llm/nemotron4_1b", *GPT, "--against", "model.depth=9", "model.width=192")
    assert found["speedup"] < 0.9 and len(found["speedups"]) == 2
    assert found["b_peak_bytes"] > 1.5 * found["a_peak_bytes"]


@pytest.mark.slow  # three processes
def test_several_ranks_are_measured_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = measured(tmp_path, "llm/nemotron4_1b", *GPT, "parallel.shard=2", "--profile")
    assert found["devices"] == 2 and found["tokens_per_s"] == pytest.approx(2 * 256 / found["step_s"])
    assert found["kinds_s"]["collectives"] > 0
