"""Tests that batches and sequences that ranks cannot share are refused before a start, with sizes that fit."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.cli import main as launcher
from nemo_vfm.cli.main import main
from nemo_vfm.parallel.plan.plan import ParallelPlan
from nemo_vfm.runtime import local_launch
from nemo_vfm.train.even_batches import require_even
from tests.support.repository import ROOT

SMALL = str(ROOT / "recipes/diffusion/train_small.yaml")
TEXT = str(ROOT / "recipes/llm/nemotron4_1b.yaml")
NUMBER = st.integers(1, 6)


class Sized:
    """As much of training data as is asked."""

    def __init__(self, **sizes: int) -> None:
        self.sizes = sizes

    def batch_sizes(self) -> dict[str, int]:
        return self.sizes


@given(size=st.integers(1, 60), shard=NUMBER, replicate=NUMBER, pipeline=st.integers(1, 3), more=st.integers(0, 4))
def test_what_is_refused_names_sizes_that_are_not_refused(
    size: int, shard: int, replicate: int, pipeline: int, more: int
) -> None:
    plan = ParallelPlan(shard=shard, replicate=replicate, pipeline=pipeline, microbatches=pipeline + more)
    unit = shard * replicate * (pipeline + more if pipeline > 1 else 1)
    if size % unit == 0:
        require_even(Sized(batch_size=size), plan, [])  # type: ignore[arg-type]
        return
    data = shard * replicate
    with pytest.raises(ValueError, match=rf"batch_size {size} cannot be divided among {data} data ranks") as said:
        require_even(Sized(batch_size=size), plan, [])  # type: ignore[arg-type]
    found = re.search(r"; (\d+)(?: or (\d+))? would fit", str(said.value))
    assert found is not None
    fits = [int(one) for one in found.groups() if one is not None]
    for one in fits:
        require_even(Sized(batch_size=one), plan, [])  # type: ignore[arg-type]
    assert all(0 < abs(one - size) < unit or size < unit == one for one in fits)


def test_packs_are_shared_by_data_ranks_alone() -> None:
    plan = ParallelPlan(shard=2, pipeline=2, microbatches=4)
    require_even(Sized(packs=2), plan, [])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="packs 3 cannot be divided among 2 data ranks"):
        require_even(Sized(packs=3), plan, [])  # type: ignore[arg-type]


WRONG = {
    "fewer samples than ranks": ([SMALL, "parallel.shard=16"], "batch_size 8 cannot be divided among 16 .*; 16 would "
                                                               "fit"),
    "a pipeline": (
        [SMALL, "parallel.pipeline=2", "parallel.microbatches=3"],
        "batch_size 8 .* in parallel.microbatches = 3 each; 6 or 9 would fit",
    ),
    "text": (
        [TEXT, "parallel.shard=1", "parallel.context=2", "data.sequence_length=4095"],
        r"sequences of 4095 tokens cannot be divided among 2 ranks .*; 4092 or 4096 would fit",
    ),
    "a video": (
        [SMALL, "parallel.context=2", "data.buckets={_target_: nemo_vfm.data.batching.bucket.Buckets, buckets: {odd: "
         "{_target_: nemo_vfm.data.batching.bucket.Bucket, width: 24, height: 24, num_frames: 1}}}"],
        "bucket odd: 9 tokens cannot be divided among 2 ranks .* 8 or 10 tokens would fit",
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("case", WRONG)
def test_check_run_and_submit_refuse_it_and_start_nothing(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def started(*_: object, **__: object) -> int:
        raise AssertionError("ranks were started")

    monkeypatch.setattr(local_launch, "launch", started)
    monkeypatch.setenv("COLUMNS", "500")
    (recipe, *changes), said = WRONG[case]
    given_ = [] if recipe == TEXT else [f"data.shards={tmp_path}/x"]
    words = [recipe, *changes, *given_, f"run_dir={tmp_path}/run"]
    commands = {"check": (main, ["check", recipe, *changes])}
    if recipe != TEXT:  # its folders are still to be given
        commands["run"] = (main, ["run", *words])
    if case == "fewer samples than ranks":  # it asks `nemo-vfm check` in a process of its own: once is enough
        commands["submit"] = (launcher, ["submit", *words, "cluster=cpu_slurm", "--dry-run"])
    for name, (command, line) in commands.items():
        assert command(line) == 2, name
        shown = " ".join("".join(capsys.readouterr()).split())
        assert re.search(said, shown), (name, shown)
    assert not (tmp_path / "run").exists()
