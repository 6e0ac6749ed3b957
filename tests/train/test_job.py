"""Tests training as a whole: it learns, it stops where it should, and a kill changes nothing."""

import json
import os
import random
import re
import signal
import sys
import time
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from nemo_vfm.core import log
from nemo_vfm.core.duration import Duration
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.precision import Precision
from nemo_vfm.core.storage.files import drop_steps_after
from nemo_vfm.core.types.batch import Batch
from nemo_vfm.core.types.job import Run
from nemo_vfm.core.types.sample_batches import VideoBatch
from nemo_vfm.data.shards.shard_folder import warn_that_none_is_held_out
from nemo_vfm.parallel.apply.build_model import build_model
from nemo_vfm.parallel.engine.torch_engine import TorchEngine
from nemo_vfm.train.callbacks.checkpointing import SaveCheckpoints
from nemo_vfm.train.callbacks.validation import Validate
from nemo_vfm.train.ema import EMA
from nemo_vfm.train.job import Train
from nemo_vfm.train.loggers import TensorBoard
from nemo_vfm.train.optim import Constant, Straight, WarmupCosine
from nemo_vfm.train.phases import Phase
from nemo_vfm.train.state.train_state import TrainState
from tests.support import preloaded
from tests.support.slots import slots
from tests.support.toy import ToyData, ToyModel, ToyTask


class KillAt:
    """Dies like a machine that lost its power, before anything of this step is written."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step(self, fit: TrainState) -> None:
        if fit.step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


class StepsTaken:
    """Notes the steps of this process: a run begun anew ends with the same bits, but takes the first ones again."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def on_step(self, fit: TrainState) -> None:
        self.steps.append(fit.step)


def train(
    duration: str = "10 steps", *, kill_at: int = 0, every_steps: int = 4, lr: float = 0.05, **more: object
) -> Train:
    settings: dict[str, object] = {
        "model": ToyModel, "data": ToyData(), "task": ToyTask(),
        "optimizer": partial(torch.optim.AdamW, lr=lr), "schedule": WarmupCosine(warmup_steps=2, total_steps=20),
        "ema": EMA(decay=0.9), "checkpoint": SaveCheckpoints(every_steps=every_steps, keep_last=None),
        "callbacks": {"kill": KillAt(kill_at)},
    }  # fmt: skip
    return Train(**slots(duration=Duration.parse(duration), **(settings | more)))


def resumed_steps(folder: Path, seed: int = 3, duration: str = "10 steps", **more: object) -> list[int]:
    """Go on to the end; the steps that were taken for it."""
    taken = StepsTaken()
    train(duration, callbacks={"taken": taken}, **more).run(Run(folder, seed=seed, resume=True))  # type: ignore[arg-type]
    return taken.steps


def lines(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def final(folder: Path, step: int) -> dict[str, torch.Tensor]:
    files = sorted((folder / f"checkpoints/step-{step:08d}").glob("*.safetensors"))
    assert [file.stem for file in files] == ["ema", "model", "optimizer"]
    return {f"{file.stem}/{name}": tensor for file in files for name, tensor in load_file(file).items()}


def test_the_loss_falls_and_every_step_has_a_line(tmp_path: Path) -> None:
    train("200 steps", every_steps=200, lr=0.02, schedule=Constant()).run(Run(tmp_path, seed=1))
    written = lines(tmp_path)
    assert [line["step"] for line in written] == list(range(1, 201))
    assert sum(line["loss"] for line in written[-20:]) < 0.25 * sum(line["loss"] for line in written[:20])


def test_the_toys_inputs_are_where_their_batch_is() -> None:
    """Else no test that trains them passes on a machine with a GPU."""
    data = ToyData()
    data.start(seed=0, first_batch=0)
    batch = next(iter(data.train_dataloader())).to(torch.device("meta"))
    assert isinstance(batch, VideoBatch)
    assert ToyTask().prepare(batch, seed=0, training=True).inputs["x"].device.type == "meta"


@pytest.mark.slow
def test_killed_and_resumed_training_gives_bit_identical_weights(tmp_path: Path) -> None:
    train().run(Run(tmp_path / "whole", seed=3))
    code = f"""
from pathlib import Path
from typing import Any
from nemo_vfm.core.types.job import Run
from nemo_vfm.data.shards.shard_folder import warn_that_none_is_held_out
from nemo_vfm.train.callbacks.checkpointing import SaveCheckpoints
from tests.train.test_job import train
at_once = SaveCheckpoints(every_steps=4, keep_last=None, asynchronous=False)  # three steps may be quicker than a disk
train(kill_at=7, checkpoint=at_once).run(Run(Path({str(tmp_path / "killed")!r}), seed=3))
"""
    killed = preloaded.run([sys.executable, "-c", code])
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert [path.name for path in (tmp_path / "killed/checkpoints").iterdir()] == ["step-00000004"]
    assert resumed_steps(tmp_path / "killed") == [5, 6, 7, 8, 9, 10]
    whole, resumed = final(tmp_path / "whole", 10), final(tmp_path / "killed", 10)
    assert whole.keys() == resumed.keys()
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    same = ("step", "loss", "grad_norm", "lr")
    assert [[line[k] for k in same] for line in lines(tmp_path / "killed")] == [
        [line[k] for k in same] for line in lines(tmp_path / "whole")
    ]


@pytest.mark.soak
def test_twenty_kills_at_any_moment_change_nothing(tmp_path: Path) -> None:
    """The clock decides where each kill falls: in a step, between two, or while a checkpoint is being written."""
    train("4000 steps", every_steps=7).run(Run(tmp_path / "whole", seed=3))
    code = f"""
from pathlib import Path
from typing import Any
from nemo_vfm.core.types.job import Run
from nemo_vfm.data.shards.shard_folder import warn_that_none_is_held_out
from tests.train.test_job import train
train("4000 steps", every_steps=7).run(Run(Path({str(tmp_path / "killed")!r}), seed=3, resume=True))
"""
    moments, kills = random.Random(0), 0
    while kills < 20:
        running = preloaded.Started([sys.executable, "-c", code], err=tmp_path / "said")
        before = len(list((tmp_path / "killed").glob("checkpoints/step-*")))
        while running.poll() is None and len(list((tmp_path / "killed").glob("checkpoints/step-*"))) == before:
            time.sleep(0.01)  # until it trains: kills while it imports prove nothing
        time.sleep(moments.uniform(0, 0.3))
        running.kill()
        kills += running.wait() == -signal.SIGKILL
        assert running.returncode in (0, -signal.SIGKILL)
        if running.returncode == 0:
            break
    assert kills >= 10, f"the run was over after {kills} kills; make it longer"
    newest = max((tmp_path / "killed/checkpoints").glob("step-*"))
    steps = resumed_steps(tmp_path / "killed", duration="4000 steps", every_steps=7)
    assert steps == list(range(int(newest.name.removeprefix("step-")) + 1, 4001))
    whole, resumed = final(tmp_path / "whole", 4000), final(tmp_path / "killed", 4000)
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


class CountedData(ToyData):
    """Counts how often it is started, and from which batch."""

    def __init__(self) -> None:
        self.starts: list[int] = []

    def start(self, *, seed: int, first_batch: int, rank: int = 0, num_ranks: int = 1) -> None:
        self.starts.append(first_batch)
        super().start(seed=seed, first_batch=first_batch, rank=rank, num_ranks=num_ranks)


def test_a_training_starts_its_data_once_and_so_does_each_resume_and_phase(tmp_path: Path) -> None:
    data = CountedData()
    for duration in ("4 steps", "8 steps"):
        train(duration, data=data).run(Run(tmp_path / "resumed", seed=1))
    phases = {name: Phase(duration=Duration(2, "steps")) for name in ("one", "two")}
    settings = {"data": data, "phases": phases, "callbacks": {}}
    train("4 steps", **settings).run(Run(tmp_path / "phases", seed=1))
    assert data.starts == [0, 4, 0, 2]


def test_another_seed_gives_other_weights(tmp_path: Path) -> None:
    for seed in (1, 2):
        train("2 steps").run(Run(tmp_path / str(seed), seed=seed))
    one, two = (final(tmp_path / str(seed), 2) for seed in (1, 2))
    assert not torch.equal(one["model/net.0.weight"], two["model/net.0.weight"])


def test_the_last_losses_are_figures_of_the_outcome(tmp_path: Path) -> None:
    outcome = train("3 steps", validation=Validate(every_steps=2)).run(Run(tmp_path))
    last = lines(tmp_path)[-1]
    assert (outcome.figures["loss"], outcome.figures["val_loss"]) == (last["loss"], last["val_loss"])


def test_what_a_training_says_leaves_the_time_to_whoever_measures_the_whole(tmp_path: Path) -> None:
    outcome = train("3 steps").run(Run(tmp_path))
    assert outcome.summary == f"trained 3 steps; weights in {tmp_path / 'checkpoints'}"
    assert outcome.figures["training_s"] > 0


class WithoutHeldOut(ToyData):
    def val_dataloader(self) -> list[Batch]:
        return []


@pytest.mark.parametrize(("warmup", "said"), [(1, 0), (2, 0), (8, 1)])
def test_a_warmup_longer_than_the_training_is_said_with_the_rate_that_is_reached(tmp_path, capfd, warmup, said):
    train("2 steps", schedule=WarmupCosine(warmup_steps=warmup)).run(Run(tmp_path))
    assert capfd.readouterr().err.count("2 steps end within the 8 of schedule.warmup_steps: the learning rate comes to "
                                        "25% of its full value") == said  # fmt: skip


def test_that_nothing_is_held_out_is_said_once_by_data_and_validation(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log.warn_once.cache_clear()
    warn_that_none_is_held_out()  # as data do that were asked to hold some out
    train("2 steps", data=WithoutHeldOut(), validation=Validate(every_steps=1)).run(Run(tmp_path))
    assert capfd.readouterr().err.count("held out") == 1


def test_the_loss_beside_the_progress_is_called_what_it_is(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    train("3 steps").run(Run(tmp_path))
    raw = [line["loss"] for line in lines(tmp_path)]
    (shown,) = re.findall(r"3/3 steps, smoothed loss ([0-9.]+)", capfd.readouterr().err)
    assert float(shown) == pytest.approx(0.95 * (0.95 * raw[0] + 0.05 * raw[1]) + 0.05 * raw[2], abs=1e-3)


@pytest.mark.parametrize(("duration", "steps"), [("2 epochs", 5), ("20 samples", 5), ("3 steps", 3)])
def test_durations_become_steps(tmp_path: Path, duration: str, steps: int) -> None:
    outcome = train(duration).run(Run(tmp_path))
    assert outcome.figures["steps"] == steps


def test_a_duration_in_seconds_ends_by_the_clock(tmp_path: Path) -> None:
    outcome = train("0.5 s", schedule=Constant()).run(Run(tmp_path))
    assert 0.5 <= outcome.figures["training_s"] < 5
    assert outcome.figures["steps"] > 1


def test_seconds_of_training_before_a_resume_count(tmp_path: Path) -> None:
    before = train("4 steps", schedule=Constant()).run(Run(tmp_path)).figures["training_s"]
    job = train("4 steps", schedule=Constant())
    job.loop = replace(job.loop, duration=Duration(before / 2, "s"))
    after = job.run(Run(tmp_path, resume=True))
    assert after.did_nothing and after.figures["steps"] == 4
    job.loop = replace(job.loop, duration=Duration(before + 0.05, "s"))
    assert before + 0.05 <= job.run(Run(tmp_path, resume=True)).figures["training_s"]


def test_validation_is_reported_by_noise_bin_and_to_tensorboard(tmp_path: Path) -> None:
    train("4 steps", validation=Validate(every_steps=2), loggers={"tensorboard": TensorBoard()}).run(Run(tmp_path))
    measured = [line for line in lines(tmp_path) if "val_loss" in line]
    assert [line["step"] for line in measured] == [2, 4]
    assert {"val_loss/noise_0-0.2", "val_loss/noise_0.8-1"} & measured[0].keys()
    assert list((tmp_path / "tensorboard").glob("events.out.tfevents.*"))


@pytest.mark.parametrize(("changes", "message"), [
    ({"every_steps": 0}, "every_steps must be at least 1, got 0"), ({"noise_edges": [0.5]}, "at least two borders"),
    ({"noise_edges": [0.0, 0.5, 0.5, 1.0]}, "noise_edges must increase"), ({"top_k": [0]}, "1 or more"),
], ids=str)  # fmt: skip
def test_each_wrong_argument_of_a_validation_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Validate(**changes)


def test_the_loss_by_noise_is_a_mean_by_weights_within_each_bin_of_the_recipe() -> None:
    losses, weights, noise = torch.arange(1.0, 6.0), torch.tensor([1.0, 3.0, 1.0, 0.0, 2.0]), torch.linspace(0, 1, 5)
    found = Validate(noise_edges=(0.0, 0.3, 0.6, 0.9, 1.0))._by_noise(losses, weights, noise)
    assert found == {"val_loss/noise_0-0.3": 7 / 4, "val_loss/noise_0.3-0.6": 3.0, "val_loss/noise_0.9-1": 5.0}


def test_the_held_out_loss_is_a_mean_by_weights_over_all_samples_whatever_batches_they_lie_in(tmp_path: Path) -> None:
    class Weighted(ToyData):
        def val_dataloader(self) -> list[Batch]:
            batches = list(super().val_dataloader())
            for number, batch in enumerate(batches):
                batch.weight_B = torch.tensor([0.0, 1.0, 2.0, 5.0 * number])
            return [*batches[:2], *batches[2].cut(4)[2:]]

    data, task = Weighted(), ToyTask()
    job = train("1 steps", data=data, ema=None, validation=Validate(every_steps=1), precision=Precision(compute="fp32"))
    job.run(Run(tmp_path, seed=3))
    weights = load_file(tmp_path / "checkpoints/step-00000001/model.safetensors")
    model = ToyModel()
    model.load_state_dict(weights)
    prepared = [task.prepare(batch, seed=3, training=False) for batch in data.val_dataloader()]
    losses = torch.cat([task.losses(model(**one.inputs), one) for one in prepared])
    by = torch.cat([one.weight_B for one in prepared])
    assert lines(tmp_path)[0]["val_loss"] == pytest.approx(float((losses * by).sum() / by.sum()), rel=1e-5)


def test_a_loss_that_is_not_finite_stops_the_run_and_names_the_batch(tmp_path: Path) -> None:
    class Broken(ToyTask):
        def losses(self, output: torch.Tensor, prepared: object) -> torch.Tensor:
            return output.sum(1) * float("nan")

    with pytest.raises(UserError, match=r"not finite at batch 0 \(samples s0, s1"):
        train(task=Broken()).run(Run(tmp_path))


def test_a_training_is_the_loop_that_torch_would_write(tmp_path: Path) -> None:
    """Its gradients clipped by torch's own function, its learning rates by the formula, its average step by step."""
    base, clip, data, task = 0.5, 0.05, ToyData(), ToyTask()
    engine = TorchEngine(clip_norm=clip)
    train("5 steps", engine=engine, optimizer=partial(torch.optim.SGD, lr=base), schedule=Straight(begin=1.0, end=0.2),
          precision=Precision("fp32"), every_steps=5).run(Run(tmp_path, seed=3))  # fmt: skip
    model = build_model(ToyModel, 3)
    average = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=base)
    data.start(seed=3, first_batch=0)
    clipped = 0
    for step, batch in zip(range(5), data.train_dataloader(), strict=False):
        optimizer.param_groups[0]["lr"] = base * (1.0, 0.8, 0.6, 0.4, 0.2)[step]
        optimizer.zero_grad()
        prepared = task.prepare(batch, seed=3, training=True)
        task.losses(model(**prepared.inputs), prepared).mean().backward()
        clipped += float(torch.nn.utils.clip_grad_norm_(model.parameters(), clip)) > 2 * clip
        optimizer.step()
        for name, tensor in model.state_dict().items():
            decay = min(0.9, (2 + step) / (11 + step))
            average[name] = decay * average[name] + (1 - decay) * tensor
    found = final(tmp_path, 5)
    assert clipped == 5
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(found[f"model/{name}"], tensor, rtol=1e-5, atol=1e-7)
        torch.testing.assert_close(found[f"ema/{name}"], average[name], rtol=1e-5, atol=1e-7)
    assert [line["lr"] for line in lines(tmp_path)] == pytest.approx([0.5, 0.4, 0.3, 0.2, 0.1])


def test_weights_of_zero_take_a_sample_out_of_the_gradient() -> None:
    def step(weight: float, bad: float) -> torch.Tensor:
        from nemo_vfm.core.precision import Precision
        from nemo_vfm.parallel.engine.step_runner import EngineInputs

        engine, data = TorchEngine(clip_norm=None), ToyData()
        runner = engine.start(EngineInputs(ToyModel, ToyTask(), partial(torch.optim.SGD, lr=0.1), Precision("fp32"), 0))  # type: ignore[arg-type]
        data.start(seed=0, first_batch=0)
        batch = next(data.train_dataloader())
        assert batch.latents_BCTHW is not None
        batch.latents_BCTHW[1] = bad
        batch.weight_B[1] = weight
        runner.step([batch])
        return torch.cat([p.detach().flatten() for p in runner.model.parameters()])

    assert torch.equal(step(0.0, 5.0), step(0.0, -5.0))
    assert not torch.equal(step(1.0, 5.0), step(1.0, -5.0))


def test_a_checkpoint_of_another_model_is_refused_with_names(tmp_path: Path) -> None:
    train("2 steps").run(Run(tmp_path))

    def other() -> torch.nn.Module:
        model = ToyModel()
        model.net[0] = torch.nn.Linear(4, 8, bias=False)
        return model

    with pytest.raises(Exception, match=r"another model \(unknown: net\.0\.bias\)"):
        train("4 steps", model=other).run(Run(tmp_path, resume=True))


def test_nothing_is_said_of_slurm_where_it_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "srun").write_text("#!/bin/sh\n")
    (tmp_path / "srun").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        train("1 steps").run(Run(tmp_path / "run"))
    assert not [one for one in said if "srun" in str(one.message)]


def test_metrics_that_end_in_rubbish_are_cut_to_the_step_and_nothing_is_left_beside_them(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 1}\n{"step": 2}\n{"step": 3}\n\xff\xfe\0')
    drop_steps_after(tmp_path / "metrics.jsonl", 2)
    assert [path.read_text() for path in tmp_path.iterdir()] == ['{"step": 1}\n{"step": 2}\n']
