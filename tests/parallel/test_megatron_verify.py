"""Tests that what looks into trainings works on Megatron-Core's: parity, diverge, preemption and explain."""

import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from nemo_vfm.cli.main import main
from nemo_vfm.models.dit import DiT
from nemo_vfm.parallel.checkpoint import checkpoint
from nemo_vfm.parallel.megatron.megatron_engine import MegatronEngine
from nemo_vfm.parallel.plan.layout_cases import LayoutCase
from nemo_vfm.parallel.plan.plan import ParallelPlan
from nemo_vfm.parallel.verify import activation_recorder, parity
from nemo_vfm.parallel.verify.divergence import Side, compare
from nemo_vfm.parallel.verify.tiny_training import TinyTraining, rehearsal_of
from tests.support.cpu_megatron import MEGATRON, megatron_on_cpu
from tests.support.layouts import FromBatch
from tests.support.ranks import POOL, on_ranks
from tests.support.repository import ROOT
from tests.support.tiny_training import changes, command, fate, metrics, shards, trained

pytestmark = pytest.mark.cluster  # several ranks
RANKS_IMPORT = MEGATRON

small = partial(DiT, in_channels=4, text_dim=16, width=48, depth=4, heads=4, text_in_modulation=True)
SEQUENCE: dict[str, Any] = {"tensor": 2, "sequence": True}
PIPELINE: dict[str, Any] = {"pipeline": 2, "microbatches": 2}
VIRTUAL: dict[str, Any] = {"pipeline": 2, "virtual": 2, "microbatches": 2}


@pytest.fixture(scope="module")
def rehearsal() -> TinyTraining:
    adamw = partial(torch.optim.AdamW, lr=1e-3)
    return rehearsal_of(small, FromBatch(), adamw, seed=3, engine=MegatronEngine(recompute="blocks"))[0]


def on_cpu(rank: int, *arguments: Any) -> Any:
    """`parity.differences` with stand-ins for CUDA."""
    with megatron_on_cpu():
        return DIFFERENCES(rank, *arguments)


def on_cpu_without_a_sum(rank: int, *arguments: Any) -> Any:
    """`parity.without_a_sum` with them."""
    with megatron_on_cpu():
        return parity.without_a_sum(rank, *arguments)


DIFFERENCES = parity.differences


@pytest.mark.soak  # test_megatron_engine.py compares layouts
def test_parity_finds_its_layouts_equal_and_sees_the_control(
    rehearsal: TinyTraining, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parity, "differences", on_cpu)
    for degrees in (VIRTUAL, SEQUENCE, {"shard": 2}):
        row = parity.row(POOL, rehearsal, LayoutCase(degrees))
        assert row.verdict == "equal", row
    zero_bubble = parity.row(POOL, rehearsal, LayoutCase({**VIRTUAL, "schedule": "zero_bubble"}))
    assert zero_bubble.verdict == "refused" and "no zero-bubble" in zero_bubble.reason
    monkeypatch.setattr(parity, "without_a_sum", on_cpu_without_a_sum)
    assert parity.control(POOL, rehearsal, 2, is_cut=True).verdict == "seen"


def steps_on_cpu(rank: int, *arguments: Any) -> Any:
    """What each module gave, with stand-ins for CUDA."""
    with megatron_on_cpu():
        return activation_recorder.steps(rank, *arguments)


def steps_off_by_a_hundredth(rank: int, *arguments: Any) -> Any:
    """The same where one row linear gives a hundredth too much."""
    with megatron_on_cpu():
        from nemo_vfm.parallel.megatron import parallel_layers

        kept = parallel_layers.split

        def mistaken(model: torch.nn.Module, *rest: Any) -> None:
            kept(model, *rest)
            linear = model.get_submodule("blocks.1.cross_attention.out")
            linear.register_forward_hook(lambda _, inputs, output: 1.01 * output)

        with patch.object(parallel_layers, "split", mistaken):
            return activation_recorder.steps(rank, *arguments)


def side(name: str, rehearsal: TinyTraining, run: Any, degrees: dict[str, Any]) -> Side:
    plan = ParallelPlan(**degrees)
    return Side(name, plan, on_ranks(plan.world, run, rehearsal, degrees, 2))


def test_diverge_finds_both_engines_alike_and_names_a_linear_that_is_wrong(rehearsal: TinyTraining) -> None:
    rehearsal = replace(rehearsal, engine=MegatronEngine())  # recomputation would call each module twice
    plain = rehearsal.by_torch()
    alone = on_ranks(1, activation_recorder.steps, plain, {}, 2)[0]
    torch_side = side("A", plain, activation_recorder.steps, {"shard": 2})
    for degrees in (SEQUENCE, PIPELINE):
        found = compare(alone, torch_side, side("B", rehearsal, steps_on_cpu, degrees), heads=4, tolerance=1e-4)
        assert found.parting is None and not found.unknown, found
        assert found.compared[1, "gradient"] == found.compared[1, "weight"] == len(alone[0].weights)
    wrong = compare(
        alone, torch_side, side("B", rehearsal, steps_off_by_a_hundredth, SEQUENCE), heads=4, tolerance=1e-4
    )
    assert wrong.parting is not None
    assert (wrong.parting.name, wrong.parting.step, wrong.parting.side) == ("blocks.1.cross_attention.out", 1, "B")


def under_torchrun(words: list[str]) -> subprocess.CompletedProcess[str]:
    """`nemo-vfm` with stand-ins for CUDA in two processes."""
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=0"]
    return subprocess.run(
        [*start, "-m", "tests.support.megatron_command", *words[3:]], cwd=ROOT, capture_output=True, text=True,
        check=False, timeout=400,
    )  # fmt: skip


@pytest.mark.soak  # tests/train/test_ranks.py has the other engine; that this one resumes is tested in its own file
def test_a_run_that_is_preempted_saves_resumes_and_is_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, folder = shards(tmp_path / "data"), tmp_path / "run"
    layout = ["model.depth=2", "engine=megatron", "parallel.pipeline=2", "parallel.microbatches=2"]
    told = under_torchrun(command(data, folder, *layout, fate("terminated", rank=1, step=3)))
    # torchrun ends the others once one has exited, so who says what is left to chance.
    saved = checkpoint.open_latest(folder / "checkpoints")
    assert told.returncode and saved is not None and saved.step == 4, told.stderr[-3000:]
    told = under_torchrun(command(data, folder, *layout, fate("terminated", rank=1, step=3)))
    assert told.returncode == 0, told.stderr[-3000:]
    assert [line["step"] for line in metrics(folder)] == [1, 2, 3, 4, 5, 6]
    alone = tmp_path / "alone"
    on_ranks(1, trained, changes(data, alone, "model.depth=2"))
    found, expected = ([line["loss"] for line in metrics(one)] for one in (folder, alone))
    assert found == pytest.approx(expected, rel=1e-4)
    assert main(["explain", f"{folder}@4", "--trust", "tests.support.tiny_training"]) == 0
    assert "step 4" in capsys.readouterr().out.lower()
