"""Tests that `check` names batches without buckets that may fail only later, in trainings with phases."""

import pytest

from nemo_vfm.cli.main import main

PHASE = "_target_: nemo_vfm.train.phases.Phase, duration: 20 steps"
PLAN = "_target_: nemo_vfm.parallel.plan.plan.ParallelPlan"


def checked(capsys: pytest.CaptureFixture[str], degrees: str, *changes: str) -> tuple[int, str]:
    phases = f"loop.phases={{a: {{{PHASE}}}, b: {{{PHASE}, parallel: {{{PLAN}, {degrees}}}}}}}"
    words = ["check", "diffusion/train_small", "data.shards=somewhere", "loop.duration=null", phases, *changes]
    status = main(words)
    return status, capsys.readouterr().out


def test_a_phase_whose_ranks_share_tokens_of_latents_without_buckets_is_named_with_its_first_step(capsys):
    status, said = checked(capsys, "context: 2")
    assert status == 0, "it may well fit"
    assert "loop.phases.b: 2 ranks share the tokens of each sample, and without data.buckets" in said
    assert "ends when this phase begins, at step 21" in said and "loop.phases.a" not in said


def test_nothing_is_said_where_tokens_are_whole_or_buckets_tell_their_number(capsys):
    assert "share the tokens" not in checked(capsys, "shard: 2")[1]
    assert "share the tokens" not in checked(capsys, "context: 2", "data.buckets=quickstart")[1]
