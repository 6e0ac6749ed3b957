"""Tests that `Train` trains a scorer on labelled clips, and that stages and Lightning then agree on a clip."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from nemo_vfm.core.device import device
from nemo_vfm.core.duration import Duration
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.types.job import Run
from nemo_vfm.core.types.sample_batches import VideoBatch
from nemo_vfm.core.types.task import Predicts, Task
from nemo_vfm.curate.learned.aesthetic import Aesthetic
from nemo_vfm.curate.learned.scorer_task import Rate, Recognise, Sort
from nemo_vfm.data.batching.bucket import Bucket, Buckets
from nemo_vfm.data.sources.shard_data import ShardData
from nemo_vfm.models.scorer import Scorer
from nemo_vfm.parallel.checkpoint.checkpoint import load_weights
from nemo_vfm.train.callbacks.checkpointing import SaveCheckpoints
from nemo_vfm.train.job import Train, start
from tests.support.encoders import labelled_clips, tiny_clip
from tests.support.films import pan
from tests.support.slots import slots
from tests.support.toy import ToyTask

BUCKET = Bucket(width=64, height=48, num_frames=4, fps=4)


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_clip(tmp_path_factory.mktemp("clip"))


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return labelled_clips(tmp_path_factory.mktemp("shards"))


def data(shards: Path) -> ShardData:
    return ShardData(shards=shards, batch_size=4, buckets=Buckets(buckets={"clip": BUCKET}))


def train(clip: Path, shards: Path, steps: int, **changes: object) -> Train:
    settings: dict[str, object] = {
        "model": partial(Scorer, folder=clip), "data": data(shards), "task": Rate(label="aesthetic"),
        "optimizer": partial(torch.optim.AdamW, lr=0.3), "duration": Duration.parse(f"{steps} steps"),
        "checkpoint": SaveCheckpoints(every_steps=1000),
    }  # fmt: skip
    return Train(**slots(**(settings | changes)))


def first_batch(shards: Path) -> VideoBatch:
    source = data(shards)
    source.start(seed=0, first_batch=0)
    return next(iter(source.train_dataloader()))


@pytest.fixture(scope="module")
def trained(clip: Path, shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    train(clip, shards, 60).run(Run(folder, seed=1))
    return folder


def test_labels_come_from_the_index_and_the_json(shards: Path):
    labels = first_batch(shards).labels[0]
    assert labels["aesthetic"] == pytest.approx(10 * labels["brightness"])
    assert labels["tone"] in ("light", "dark")


def test_the_loss_falls_and_only_the_head_has_changed(clip: Path, trained: Path):
    losses = [line for line in (trained / "metrics.jsonl").read_text().splitlines() if '"loss"' in line]
    values = [float(line.split('"loss": ')[1].split(",")[0]) for line in losses]
    assert np.mean(values[-5:]) < 0.3 * np.mean(values[:5])
    weights, before = load_weights(trained / "checkpoints", "model"), Scorer(folder=clip).state_dict()
    same = {name for name in before if torch.equal(weights[name].cpu(), before[name])}
    assert {name.split(".")[0] for name in before.keys() - same} == {"head"}
    assert {name.split(".")[0] for name in same} == {"encoder"}


def test_the_stage_says_what_the_training_learned(clip: Path, trained: Path):
    settings = {"model": partial(Scorer, folder=clip), "task": Rate(label="aesthetic")}
    stage, fresh = Aesthetic(**settings, trained=trained / "checkpoints"), Aesthetic(**settings)
    with pytest.raises(UserError, match="head has no weights"):
        fresh.judge([pan(0)])
    films = [pan(seed) for seed in range(8)]
    levels = [10 * float(film.mean()) / 255 for film in films]
    scores = [float(finding.scores["aesthetic.mean"]) for finding in stage.judge(films)]
    assert np.corrcoef(scores, levels)[0, 1] > 0.7
    assert stage.fingerprint() != fresh.fingerprint()


def test_lightning_predicts_what_the_stage_does(clip: Path, shards: Path, trained: Path):
    from lightning.pytorch import Trainer
    from torch.utils.data import DataLoader

    from nemo_vfm.train.module import TrainModule

    job = train(clip, shards, 60)
    fit = start(job, Run(trained, seed=1, resume=True))
    batch = first_batch(shards)
    lightning = Trainer(accelerator="auto", devices=1, logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False)  # fmt: skip
    (said,) = lightning.predict(TrainModule(fit), DataLoader([batch], batch_size=None))
    stage = Aesthetic(model=job.model, task=job.task, trained=trained / "checkpoints")
    clips = [video.permute(1, 2, 3, 0).numpy() for video in batch.video_BCTHW]
    assert said.cpu().numpy() == pytest.approx(np.stack(stage.bearer.say(clips)), abs=1e-4)
    assert fit.model.training


def test_a_task_that_only_trains_says_so(clip: Path, shards: Path, tmp_path: Path):
    from nemo_vfm.train.module import TrainModule

    assert not isinstance(ToyTask(), Predicts)
    fit = start(train(clip, shards, 1, task=ToyTask()), Run(tmp_path))
    with pytest.raises(UserError, match="ToyTask has no predict"):
        TrainModule(fit).predict_step(first_batch(shards), 0)


@pytest.mark.parametrize("task, outputs", [
    (Sort(label="tone", classes=("dark", "light")), 2), (Recognise(), 0), (Rate(label="brightness"), 1)
])  # fmt: skip
def test_every_task_gives_a_loss_a_sample_with_a_gradient(clip: Path, shards: Path, task: Task, outputs: int):
    assert isinstance(task, Predicts)
    scorer = Scorer(folder=clip, outputs=outputs, train_encoder=True).to(device())
    prepared = task.prepare(first_batch(shards).to(device()), seed=0, training=True)
    output = scorer(**prepared.inputs)
    losses = task.losses(output, prepared)
    losses.sum().backward()
    assert losses.shape == (4,) and losses.dtype == torch.float32 and torch.isfinite(losses).all()
    assert any(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in scorer.parameters())
    assert task.predict(output, prepared).shape[:2] == (4, 4)


def unlabelled(*labels: dict[str, object]) -> VideoBatch:
    ones, pixels = torch.ones(len(labels)), torch.zeros(len(labels), 3, 1, 8, 8, dtype=torch.uint8)
    keys = tuple(f"clip{place}" for place in range(len(labels)))
    return VideoBatch(0, keys, ones, keys, ones, video_BCTHW=pixels, labels=labels)


def test_a_sample_without_its_label_weighs_nothing():
    batch = unlabelled({"a": 1.0}, {}, {"a": float("nan")}, {"a": "high"})
    prepared = Rate(label="a").prepare(batch, seed=0, training=True)
    assert prepared.weight_B.tolist() == [1, 0, 0, 0]
    assert torch.isfinite(prepared.targets["label"]).all()


def test_a_batch_without_any_label_names_those_that_are_there():
    with pytest.raises(
        UserError, match=r"clip0, clip1 has a usable label 'aesthetics'; its labels are \['aesthetic'\]"
    ):
        Rate(label="aesthetics").prepare(unlabelled({"aesthetic": 1.0}, {}), seed=0, training=True)


def test_latents_are_refused():
    batch = VideoBatch(0, ("a",), torch.ones(1), ("",), torch.ones(1), latents_BCTHW=torch.zeros(1, 1, 1, 1, 1))
    with pytest.raises(UserError, match="a scorer needs pixels"):
        Rate(label="a").prepare(batch, seed=0, training=True)


@pytest.mark.parametrize("classes", [("one",), ("same", "same")])
def test_classes_are_at_min_two_and_different(classes: tuple[str, ...]):
    with pytest.raises(ValueError, match="two different names"):
        Sort(label="x", classes=classes)
