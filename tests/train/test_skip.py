"""Tests a training that skips samples and steps: what it does instead, what stays as it was, and a resume."""

import json
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from nemo_vfm.core.duration import Duration
from nemo_vfm.core.precision import Precision
from nemo_vfm.core.types.job import Run
from nemo_vfm.parallel.engine.torch_engine import TorchEngine
from nemo_vfm.train.callbacks.checkpointing import SaveCheckpoints
from nemo_vfm.train.ema import EMA
from nemo_vfm.train.job import Train
from nemo_vfm.train.loop import Loop
from nemo_vfm.train.state.skip import Skip
from tests.support.toy import ToyData, ToyModel, ToyTask
from tests.train.test_job import CountedData

NOTHING = Skip()


def train(folder: Path, skip: Skip = NOTHING, steps: int = 6, data: ToyData | None = None) -> dict[str, torch.Tensor]:
    """The toy regression; what its last checkpoint holds."""
    Train(
        model=ToyModel, data=data or ToyData(), task=ToyTask(), optimizer=partial(torch.optim.AdamW, lr=0.05),
        loop=Loop(duration=Duration(steps, "steps"), checkpoint=SaveCheckpoints(every_steps=1, keep_last=None)),
        engine=TorchEngine(), precision=Precision("fp32"), callbacks={"ema": EMA(decay=0.9), "skip": skip},
    ).run(Run(folder, seed=1))  # fmt: skip
    return weights(folder, steps)


def weights(folder: Path, step: int) -> dict[str, torch.Tensor]:
    found = folder / "checkpoints" / f"step-{step:08d}"
    return {f"{group}/{name}": x for group in ("model", "ema")
            for name, x in load_file(found / f"{group}.safetensors").items()}  # fmt: skip


def alike(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


def lines(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_step_that_is_left_out_is_counted_and_changes_nothing(tmp_path: Path):
    train(tmp_path / "all")
    train(tmp_path / "some", Skip(steps=[3]))
    assert alike(weights(tmp_path / "all", 2), weights(tmp_path / "some", 2))
    assert alike(weights(tmp_path / "some", 2), weights(tmp_path / "some", 3))
    assert not alike(weights(tmp_path / "all", 3), weights(tmp_path / "some", 3))
    third = lines(tmp_path / "some")[2]
    assert third["step"] == 3 and third["skipped"] == 1 and "loss" not in third
    assert [line["step"] for line in lines(tmp_path / "some")] == [1, 2, 3, 4, 5, 6]


def test_a_sample_that_is_left_out_has_no_influence_and_moves_no_other(tmp_path: Path):
    train(tmp_path / "all")
    train(tmp_path / "some", Skip(samples=["s9"]))  # of batch 2, which is step 3
    assert alike(weights(tmp_path / "all", 2), weights(tmp_path / "some", 2))
    assert not alike(weights(tmp_path / "all", 3), weights(tmp_path / "some", 3))
    found = lines(tmp_path / "some")[2]["loss"]
    assert found != lines(tmp_path / "all")[2]["loss"]
    # The other three, by themselves, from the weights of step 2:
    data, task, model = ToyData(), ToyTask(), ToyModel()
    model.load_state_dict(load_file(tmp_path / "some/checkpoints/step-00000002/model.safetensors"))
    data.start(seed=1, first_batch=2)
    prepared = task.prepare(next(data.train_dataloader()), seed=1, training=True)
    losses = task.losses(model(**prepared.inputs), prepared).detach()
    assert found == pytest.approx(float(losses[[0, 2, 3]].mean()), rel=1e-5)


def test_a_killed_training_goes_on_to_the_same_weights(tmp_path: Path):
    skip = Skip(samples=["s9"], steps=[2, 5])
    whole = train(tmp_path / "whole", skip)
    train(tmp_path / "halves", skip, steps=4)
    assert alike(whole, train(tmp_path / "halves", skip, data=(data := CountedData())))
    assert data.starts == [4]


def test_going_on_with_another_skip_says_so_where_it_changes_what_was_done(tmp_path: Path, caplog):
    train(tmp_path, Skip(steps=[2]), steps=4)
    caplog.clear()
    train(tmp_path, Skip(steps=[2, 6]), steps=5)
    assert "skip differs" not in caplog.text
    train(tmp_path, Skip(steps=[3, 6]))
    assert "skip differs from what this run began with (step 2, 3)" in " ".join(caplog.text.split())


@pytest.mark.parametrize("wrong", [{"steps": [0]}, {"steps": [True]}, {"samples": "s9"}])
def test_what_names_nothing_is_refused(wrong: dict[str, list[int]]):
    with pytest.raises(ValueError, match="skip"):
        Skip(**wrong)
