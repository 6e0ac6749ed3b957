"""Tests that Lightning's arguments, callbacks and words mean in a recipe what they mean to Lightning."""

import json
from inspect import signature
from pathlib import Path

import lightning
import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.demos.boring_classes import BoringDataModule, BoringModel

from nemo_vfm.cli.main import main
from nemo_vfm.config.locate import DEFAULT_TRUST, NotLocated, locate
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.types.job import Run
from nemo_vfm.train.lightning.devices import Placement
from nemo_vfm.train.lightning.fit import options
from nemo_vfm.train.lightning.fit_settings import TrainerOptions
from nemo_vfm.train.lightning_fit import LightningFit
from tests.support.repository import ROOT

RECIPE = str(ROOT / "recipes/lightning/boring.yaml")
#: Arguments of the Trainer that Lightning 2.4 does not have yet.
NEW = {"2.4": set[str](), "2.5": {"model_registry"}, "2.6": {"model_registry", "enable_autolog_hparams"}}


def fit(**more):
    """A demonstration of one epoch."""
    given = {"module": BoringModel, "data": BoringDataModule, "trainer": TrainerOptions(max_epochs=1),
             "accelerator": "cpu"}  # fmt: skip
    return LightningFit(**given | more)


def test_every_argument_of_the_trainer_is_an_option_or_refused_with_a_reason():
    ours, refused = signature(TrainerOptions).parameters.keys(), TrainerOptions.REFUSED_ARGUMENTS
    theirs = signature(Trainer).parameters.keys()
    assert NEW["2.6"] | theirs == ours | refused.keys() and not ours & refused.keys()
    assert all(len(reason) > 20 for reason in refused.values())
    version = ".".join(lightning.__version__.split(".")[:2])
    assert NEW["2.6"] & theirs == NEW.get(version, NEW["2.6"])


def test_a_refused_argument_is_answered_with_the_reason(capsys):
    assert main(["check", RECIPE, "trainer.devices=2", "trainer.barebones=true"]) == 2
    said = " ".join("".join(capsys.readouterr()).split())
    assert "takes no argument devices; they belong beside trainer" in said and "which a run folder needs" in said


@pytest.mark.parametrize("word", ["16", "32", "bf16", "64", "16-mixed", "bf16-mixed", "32-true", "'16'"])
def test_a_precision_is_written_in_any_of_lightnings_words(word, capsys):
    assert main(["check", RECIPE, f"trainer.precision={word}"]) == 0, capsys.readouterr()


@pytest.mark.parametrize("option", [{}, {"max_steps": -1}])
def test_a_training_needs_a_length(option):
    with pytest.raises(ValueError, match="give max_epochs, max_steps or max_time"):
        fit(trainer=TrainerOptions(**option))
    assert fit(trainer=TrainerOptions(max_time={"minutes": 1})) is not None


def test_a_number_of_steps_alone_ends_a_training_there_with_a_checkpoint(tmp_path):
    options = TrainerOptions(max_steps=70, profiler="simple", enable_progress_bar=False, max_time="00:01:00:00",
                             enable_model_summary=True, log_every_n_steps=1)  # fmt: skip
    assert fit(trainer=options).run(Run(tmp_path)).figures["steps"] == 70
    saved = torch.load(tmp_path / "checkpoints/step-00000070.ckpt", weights_only=True)
    assert saved["global_step"] == 70


def test_a_dry_run_takes_one_batch_of_everything(tmp_path):
    assert fit(trainer=TrainerOptions(max_epochs=3, fast_dev_run=True)).run(Run(tmp_path)).figures["steps"] == 1


def test_an_option_that_this_lightning_does_not_have_is_named(monkeypatch):
    old = ("enable_progress_bar", "enable_model_summary", "check_val_every_n_epoch")
    parameters = [parameter for name, parameter in signature(Trainer).parameters.items() if name in old]
    monkeypatch.setattr(Trainer, "__signature__", signature(Trainer).replace(parameters=parameters), raising=False)
    with pytest.raises(UserError, match=r"the Trainer of Lightning 2\S+ has no enable_autolog_hparams"):
        options(TrainerOptions(enable_autolog_hparams=True), has_bar=False)


@pytest.mark.parametrize(
    ("devices", "accelerator", "gpus", "ranks", "whole"),
    [(2, "auto", 8, 2, 0), ("auto", "auto", 8, 8, 1), (-1, "gpu", 4, 4, 1), ("auto", "cpu", 8, 1, 0),
     ("auto", "auto", 0, 1, 1), ([0, 1, 5], "gpu", 8, 3, 0)],
)  # fmt: skip
def test_as_many_processes_work_as_lightning_has_devices(monkeypatch, devices, accelerator, gpus, ranks, whole):
    monkeypatch.setattr("nemo_vfm.train.lightning.devices.gpu_count", lambda: gpus)
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    job = fit(devices=devices, accelerator=accelerator)
    assert (job.needs().ranks, job.needs().whole_nodes) == (ranks, whole)
    monkeypatch.setenv("RANK", "0"), monkeypatch.setenv("WORLD_SIZE", "6")
    assert job.needs().ranks == (6 if devices in ("auto", -1) else ranks), "those that a scheduler has started"


def test_of_several_gpus_those_by_number_are_given_to_lightning(monkeypatch):
    monkeypatch.setattr("nemo_vfm.train.lightning.devices.gpu_count", lambda: 4)
    monkeypatch.setattr("nemo_vfm.train.lightning.devices.device", lambda: torch.device("cuda", 0))
    placed = [Placement(accelerator="auto", devices=one, num_nodes=1) for one in ([1, 3], 2, 1, -1)]
    assert [one.for_trainer() for one in placed] == [("gpu", [1, 3]), ("gpu", 2), ("gpu", [0]), ("gpu", 4)]
    with pytest.raises(UserError, match="asks for GPU 5, but this machine has GPUs 0 to 3"):
        Placement(accelerator="gpu", devices=[5], num_nodes=1).for_trainer()


@pytest.mark.parametrize(
    ("more", "said"),
    [({"devices": 0}, "at least 1, or auto"), ({"devices": [0, 0]}, r"different GPUs, such as \[0, 1\], got \[0, 0\]"),
     ({"devices": [0]}, "accelerator is cpu"), ({"num_nodes": 0}, "num_nodes must be at least 1, got 0")],
)  # fmt: skip
def test_devices_that_cannot_be_are_refused(more, said):
    with pytest.raises(ValueError, match=said):
        fit(**more)


def test_the_launcher_is_told_that_a_recipe_takes_whole_nodes(capsys):
    assert main(["check", RECIPE, "devices=auto", "num_nodes=2", "--work"]) == 0
    (step,) = json.loads(capsys.readouterr().out)["steps"]
    assert step["whole_nodes"] == 2


SILENT = {"BackboneFinetuning", "BatchSizeFinder", "DeviceStatsMonitor", "EMAWeightAveraging", "EarlyStopping",
          "GradientAccumulationScheduler", "LearningRateFinder", "LearningRateMonitor", "ModelPruning", "ModelSummary",
          "RichModelSummary", "RichProgressBar", "StochasticWeightAveraging", "TQDMProgressBar", "ThroughputMonitor",
          "Timer", "WeightAveraging"}  # fmt: skip
#: These write where their arguments say, run what they are given, or are of no use without a class of one's own.
OTHERS = {"ModelCheckpoint", "OnExceptionCheckpoint", "SpikeDetection", "LambdaCallback", "Callback", "Checkpoint",
          "BaseFinetuning", "BasePredictionWriter", "ProgressBar"}  # fmt: skip


def test_callbacks_of_lightnings_are_trusted_but_those_that_write_or_run_what_they_are_given():
    from lightning.pytorch import callbacks

    assert {*callbacks.__all__} - SILENT <= OTHERS
    for name in SILENT & {*callbacks.__all__}:
        assert locate(f"lightning.pytorch.callbacks.{name}", DEFAULT_TRUST) is getattr(callbacks, name)
    for name in OTHERS & {*callbacks.__all__}:
        with pytest.raises(NotLocated, match="is not trusted; if you trust its code, add --trust lightning"):
            locate(f"lightning.pytorch.callbacks.{name}", DEFAULT_TRUST)


@pytest.mark.parametrize(
    ("name", "said"),
    [("torch.optim.lr_scheduler.ReduceLROnPlateau", "is not trusted; if you"),
     ("lightning.pytorch.callbacks.ModelSumary", r"did you mean lightning.pytorch.callbacks.ModelSummary\?")],
)  # fmt: skip
def test_another_class_is_suggested_only_for_a_name_that_does_not_exist(name, said):
    with pytest.raises(NotLocated, match=said):
        locate(name, DEFAULT_TRUST)


def test_a_callback_that_ends_the_run_needs_no_trust(tmp_path: Path, capsys):
    words = ["callbacks.early={_target_: lightning.pytorch.callbacks.EarlyStopping, monitor: x, strict: false}",
             "trainer.max_steps=2", f"run_dir={tmp_path / 'run'}"]  # fmt: skip
    assert main(["run", RECIPE, *words]) == 0, capsys.readouterr().err
