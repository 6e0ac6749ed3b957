"""Tests that NeMo YAML files become settings for the run's folders, or are refused; needs no nemo-toolkit."""

from types import SimpleNamespace

import pytest
import torch
from omegaconf import OmegaConf

from nemo_vfm.core.duration import Duration
from nemo_vfm.core.errors import RunFolderError, UserError
from nemo_vfm.nemo.exp_manager import Bookkeeping, inside
from nemo_vfm.nemo.experiment import _outcome, compare, length, read_settings

TEXT = "trainer: {max_steps: 5}\nmodel: {optim: {lr: 0.1}, double: '${model.optim.lr}'}\n"


@pytest.fixture
def file(tmp_path):
    """A small NeMo file."""
    path = tmp_path / "nemo.yaml"
    path.write_text(TEXT)
    return path


def test_changes_are_made_at_their_address_and_interpolation_stays(file):
    found = read_settings(file, {"model.optim.lr": 0.5, "trainer.max_steps": 9, "trainer.accelerator": "cpu"})
    assert OmegaConf.to_container(found, resolve=True) == {
        "trainer": {"max_steps": 9, "accelerator": "cpu"},
        "model": {"optim": {"lr": 0.5}, "double": 0.5},
    }


@pytest.mark.parametrize(
    ("text", "changes", "sentence"),
    [
        (TEXT, {"model.optim.rl": 1}, "rl"),
        ("trainer: {}\n", {}, "has no section 'model'"),
        ("[1]\n", {}, "is not a mapping"),
        ("a: [\n", {}, "nemo.yaml: while parsing"),
        (f"init_from_pretrained_model: stt_en\n{TEXT}", {}, "nothing is downloaded here"),
        (f"defaults: [base]\n{TEXT}", {}, "includes other files"),
        ("!!python/object/apply:os.system ['touch canary']\n", {}, "could not determine a constructor"),
    ],
)
def test_what_cannot_be_used_is_a_sentence(file, text, changes, sentence):
    file.write_text(text)
    with pytest.raises(UserError, match=sentence):
        read_settings(file, changes)
    with pytest.raises(UserError, match="nothere"):
        read_settings(file.with_name("nothere.yaml"), {})


def test_a_duration_is_steps_or_epochs():
    assert length(Duration(10, "steps")) == {"trainer.max_steps": 10, "trainer.max_epochs": -1}
    assert length(Duration(2, "epochs")) == {"trainer.max_epochs": 2, "trainer.max_steps": -1}
    assert length(None) == {}
    with pytest.raises(ValueError, match="the length of a NeMo run must be in steps or epochs, got 3 h"):
        length(Duration(3, "h"))


def test_a_run_goes_on_longer_but_not_as_another(tmp_path):
    before = {"trainer": {"max_steps": 5, "precision": 32}, "model": {"lr": 0.1}}
    compare(tmp_path, before)
    compare(tmp_path, before | {"trainer": {"max_steps": 10, "precision": 32}, "exp_manager": {"save_top_k": 1}})
    with pytest.raises(RunFolderError, match=r"started with model\.lr: 0\.1, now it is 0\.2 \(and 1 more differ\)"):
        compare(tmp_path, {"trainer": {"max_steps": 5, "precision": 16}, "model": {"lr": 0.2}})


def test_every_folder_is_the_run_s(tmp_path):
    asked = {"exp_dir": "/elsewhere", "explicit_log_dir": "/other", "resume_from_checkpoint": "/x.ckpt",
             "checkpoint_callback_params": {"dirpath": "/y", "save_top_k": 2}, "create_mlflow_logger": True,
             "create_wandb_logger": True, "wandb_logger_kwargs": {"name": "a", "save_dir": "/z"}}  # fmt: skip
    found = inside(asked, tmp_path)
    assert (found["exp_dir"], found["explicit_log_dir"], found["resume_from_checkpoint"]) == (str(tmp_path), None, None)
    params = {"save_nemo_on_train_end": False, "dirpath": None, "save_top_k": 2}
    assert found["checkpoint_callback_params"] == params
    assert found["wandb_logger_kwargs"] == {"name": "a", "save_dir": str(tmp_path / "nemo")}
    assert found["mlflow_logger_kwargs"]["tracking_uri"].startswith(f"file://{tmp_path}")
    with pytest.raises(UserError, match="create_clearml_logger writes outside the run folder"):
        inside({"create_clearml_logger": True}, tmp_path)


def test_the_component_speaks_nemo_s_names():
    found = Bookkeeping(tensorboard=False, save_every_steps=7, early_stopping_patience=3, ema_decay=0.9).section()
    assert found["checkpoint_callback_params"]["every_n_train_steps"] == 7
    assert not found["create_tensorboard_logger"] and found["ema"] == {"enable": True, "decay": 0.9}
    assert found["early_stopping_callback_params"] == {"monitor": "val_loss", "mode": "min", "patience": 3}
    assert "max_time_per_run" not in found and Bookkeeping(max_time="00:04:00:00").section()["max_time_per_run"]
    for wrong in ({"save_every_steps": 0}, {"ema_decay": 1.0}):
        with pytest.raises(ValueError, match="give"):
            Bookkeeping(**wrong)


def test_a_metric_that_is_no_number_does_not_undo_a_finished_training(tmp_path):
    metrics = {"val_loss": torch.tensor(float("nan")), "train_loss": torch.tensor(0.5)}
    trainer = SimpleNamespace(is_global_zero=False, global_step=3, callback_metrics=metrics)
    assert _outcome(None, trainer, tmp_path).figures == {"steps": 3, "train_loss": 0.5}
