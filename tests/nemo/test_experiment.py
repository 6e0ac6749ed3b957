"""Tests a NeMo YAML trained by our command line: killed, resumed, saved, and read back without NeMo."""

import json
import os
import sys

import pytest
import torch

from nemo_vfm.models.convert.foreign import read_nemo
from tests.support import preloaded
from tests.support.recipe_folder import ROOT, Kitchen

pytest.importorskip("nemo.core", reason="needs nemo-toolkit, which has an environment of its own: make test-nemo")

NEMO = """
name: toy
trainer: {max_steps: 5, accelerator: cpu, devices: 1, num_nodes: 1, max_epochs: -1, enable_progress_bar: false,
          log_every_n_steps: 1, logger: false, enable_checkpointing: false}
model:
  train_ds: {seed: 3, batch_size: 64}
  optim: {name: sgd, lr: 0.05}
exp_manager:
  exp_dir: ../elsewhere
  create_tensorboard_logger: true
  checkpoint_callback_params: {monitor: train_loss, save_top_k: 1, every_n_train_steps: 2, every_n_epochs: null}
"""
RECIPE = """
_target_: nemo_vfm.nemo.experiment.NeMoExperiment
config: nemo.yaml
model: {_target_: tests.support.toy_nemo.Line}
duration: 5 steps
"""
TRUSTED = ("--trust", "nemo", "--trust", "tests.support.toy_nemo")


@pytest.fixture(scope="module")
def kitchen(tmp_path_factory):
    """A folder with a NeMo file and a recipe that points at it."""
    made = Kitchen(tmp_path_factory.mktemp("kitchen"))
    made.write("nemo.yaml", NEMO)
    made.write("recipe.yaml", RECIPE)
    return made


def nemo_vfm(kitchen, *words, **variables):
    """Run the command line in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200", **variables}
    return preloaded.run([sys.executable, "-m", "nemo_vfm", *words], cwd=kitchen.folder, env=environment)


def metrics(run):
    """The lines that the report draws."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def whole(kitchen):
    """Ten steps without a kill, with exp_manager as a component."""
    component = "{_target_: nemo_vfm.nemo.exp_manager.Bookkeeping, monitor: train_loss, save_every_steps: 4}"
    done = nemo_vfm(kitchen, "run", "recipe.yaml", *TRUSTED, "run_dir=whole", "duration=10 steps",
                    f"exp_manager={component}")  # fmt: skip
    assert done.returncode == 0, done.stderr
    return kitchen.folder / "whole"


@pytest.fixture(scope="module")
def resumed(kitchen):
    """Five steps, killed at the fourth, run again, then extended to ten and killed at the eighth."""
    run = ("run", "recipe.yaml", *TRUSTED, "run_dir=run")
    first = nemo_vfm(kitchen, *run, TOY_KILL_AT="3")
    assert first.returncode == -9, first.stderr
    for words, kill in (((), "99"), (("duration=10 steps",), "7"), (("duration=10 steps",), "99")):
        done = nemo_vfm(kitchen, *run, *words, TOY_KILL_AT=kill)
        assert done.returncode == (-9 if kill == "7" else 0), done.stderr
    return kitchen.folder / "run"


def test_a_killed_and_extended_run_gives_the_numbers_of_a_whole_one(whole, resumed):
    # A batch is the whole data here: Lightning 2.4 starts a loader anew on a resume, also in the middle of an epoch.
    assert [line["step"] for line in metrics(whole)] == list(range(1, 11))
    assert [(line["step"], line["loss"]) for line in metrics(resumed)] == [
        (line["step"], line["loss"]) for line in metrics(whole)
    ]
    a, b = (read_nemo(run / "model.nemo").weights for run in (whole, resumed))
    assert list(a) == list(b) and all(torch.equal(a[name], b[name]) for name in a)


def test_our_reader_gives_the_weights_that_nemo_saved(resumed):
    archive = read_nemo(resumed / "model.nemo")
    checkpoint = next((resumed / "nemo" / "checkpoints").glob("*-last.ckpt"))
    saved = torch.load(checkpoint, weights_only=False)["state_dict"]  # NeMo wrote it, here, a moment ago
    assert list(archive.weights) == list(saved) and len(saved) == 4
    assert all(torch.equal(archive.weights[name], saved[name]) for name in saved)
    assert "toy_nemo.Line" in archive.config and "batch_size: 64" in archive.config


def test_convert_reads_the_archive_in_its_own_process(kitchen, resumed):
    done = nemo_vfm(kitchen, "convert", "run/model.nemo", "converted")
    assert done.returncode == 0 and done.stdout.startswith("4 tensors, 31 numbers"), done.stderr
    assert json.loads((kitchen.folder / "converted" / "config.json").read_text())["optim"]["lr"] == 0.05


def test_the_run_folder_holds_everything_and_nothing_is_written_beside_it(kitchen, whole, resumed):
    for run in (whole, resumed):
        names = {path.name for path in run.iterdir()}
        assert {"recipe.yaml", "manifest.json", "status.json", "report.html", "metrics.jsonl", "model.nemo"} <= names
        assert list((run / "nemo").rglob("events.out.tfevents*")) and list((run / "nemo").rglob("*-last.ckpt"))
        assert json.loads((run / "status.json").read_text())["state"] == "done"
    here = {path.name for path in kitchen.folder.iterdir()} - {"converted"}
    assert here == {"nemo.yaml", "recipe.yaml", "run", "whole"}
    assert not (kitchen.folder.parent / "elsewhere").exists()


def test_other_settings_in_the_same_folder_are_refused(kitchen, resumed):
    kitchen.write("nemo.yaml", NEMO.replace("lr: 0.05", "lr: 0.5"))
    try:
        # A longer duration, since a finished run of this recipe has nothing to do.
        done = nemo_vfm(kitchen, "run", "recipe.yaml", *TRUSTED, "run_dir=run", "duration=11 steps")
    finally:
        kitchen.write("nemo.yaml", NEMO)
    assert done.returncode == 2 and "was started with model.optim.lr: 0.05, now it is 0.5" in done.stderr


def test_without_its_word_of_trust_nothing_of_the_file_is_read(kitchen):
    done = nemo_vfm(kitchen, "check", "recipe.yaml", "--trust", "nemo_vfm", "--trust", "tests.support.toy_nemo")
    assert done.returncode == 2 and "add --trust nemo" in done.stdout + done.stderr
