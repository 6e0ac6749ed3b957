"""Tests that a Lightning run begins with the weights of anybody's checkpoint, or says which do not fit."""

from functools import partial
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import StochasticWeightAveraging
from safetensors.torch import save_file

from nemo_vfm.cli.main import main
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.types.job import Run
from nemo_vfm.train.lightning.best import find_checkpoint, list_checkpoints
from nemo_vfm.train.lightning.evaluation import LightningValidate
from nemo_vfm.train.lightning.fit_settings import StartWeights
from nemo_vfm.train.lightning.start_weights import begin_with
from tests.support.repository import ROOT
from tests.train.test_lightning_fit import Draws, Loud, Net, job


class AtEnd(Callback):
    """Changes a weight when the training ends."""

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        next(iter(pl_module.parameters())).data += 1


def weights(path: Path) -> dict[str, torch.Tensor]:
    """Written as a state dict of `Net`."""
    torch.manual_seed(7)
    tensors = Net().state_dict()
    if path.suffix == ".safetensors":
        save_file(tensors, path)
    else:  # as Lightning writes it where a module has kept an object, and with an optimizer beside
        torch.save({"state_dict": tensors, "hyper_parameters": {"option": Draws()}, "epoch": 3,
                    "optimizer_states": [{"state": {0: {"exp_avg": torch.zeros(3)}}}]}, path)  # fmt: skip
    return tensors


@pytest.mark.parametrize("name", ["a.ckpt", "a.pt", "a.safetensors"])
def test_a_module_has_the_weights_of_the_file_and_nothing_in_it_is_run(tmp_path: Path, name: str) -> None:
    given, module = weights(tmp_path / name), Net()
    begin_with(StartWeights(path=tmp_path / name), module)
    assert all(torch.equal(value, given[key]) for key, value in module.state_dict().items())


def test_only_a_fresh_run_begins_with_them(tmp_path: Path) -> None:
    given = weights(tmp_path / "a.ckpt")
    short = {"callbacks": {}, "start_from": tmp_path / "a.ckpt", "trainer": {"max_epochs": 1}}
    job(**short | {"trainer": {"max_epochs": 1, "max_steps": 1}}).run(Run(tmp_path / "run"))
    first = torch.load(find_checkpoint(tmp_path / "run", "last"), weights_only=True)["state_dict"]
    assert all((first[name] - given[name]).abs().max() <= 0.011 for name in given), "a step of AdamW from there"
    job(**short).run(Run(tmp_path / "run", resume=True))
    torch.save({}, tmp_path / "a.ckpt")  # nobody reads it again
    job(**short).run(Run(tmp_path / "run", resume=True))
    begun = Net()
    begin_with(StartWeights(path=tmp_path / "run"), begun)
    last = torch.load(find_checkpoint(tmp_path / "run", "last"), weights_only=True)["state_dict"]
    assert all(torch.equal(value, last[name]) for name, value in begun.state_dict().items())


def test_an_average_that_the_end_puts_in_is_what_others_begin_with_and_no_resume(tmp_path: Path) -> None:
    made = list[Net]()

    def fit() -> str:
        average = partial(StochasticWeightAveraging, swa_lrs=0.05, swa_epoch_start=1, annealing_epochs=1)
        module = lambda: made.append(Net()) or made[-1]  # type: ignore[func-returns-value]  # noqa: E731
        short = job(module=module, callbacks={"swa": average}, trainer={"max_epochs": 4})
        return short.run(Run(tmp_path, seed=3, resume=True)).summary

    assert "final.ckpt" in fit() and "final.ckpt" in fit(), "it is there when nothing is left to do"
    begun = Net()
    begin_with(StartWeights(path=tmp_path), begun)
    assert all(torch.equal(value, begun.state_dict()[name]) for name, value in made[0].state_dict().items())
    assert (
        find_checkpoint(tmp_path, "last").name == "final.ckpt"
        and list_checkpoints(tmp_path)[-1].name == "step-00000024.ckpt"
    )
    test = LightningValidate(module=Net, data=Loud, trained=tmp_path, ckpt="last", accelerator="cpu")
    assert "final.ckpt" in test.run(Run(tmp_path / "test")).summary
    plain = torch.load(list_checkpoints(tmp_path)[-1], weights_only=True)["state_dict"]
    assert any(not torch.equal(value, plain[name]) for name, value in begun.state_dict().items())


def test_a_training_that_goes_on_removes_the_weights_of_its_former_end(tmp_path: Path) -> None:
    job(callbacks={"end": AtEnd}, trainer={"max_epochs": 1}).run(Run(tmp_path, seed=3))
    assert (tmp_path / "checkpoints/final.ckpt").exists()
    outcome = job(callbacks={}, trainer={"max_epochs": 2}).run(Run(tmp_path, seed=3, resume=True))
    assert not (tmp_path / "checkpoints/final.ckpt").exists() and "final" not in outcome.summary


def test_what_does_not_fit_is_counted_and_shapes_are_named(tmp_path: Path, capfd) -> None:
    weights(tmp_path / "a.ckpt")
    wide = partial(Net, width=16)
    with pytest.raises(UserError, match=r"3 have another shape \(other shape: net.0.bias \(8,\), here \(16,\)"):
        begin_with(StartWeights(path=tmp_path / "a.ckpt"), wide())
    module = wide()
    module.more = torch.nn.Linear(2, 2)
    begin_with(StartWeights(path=tmp_path / "a.ckpt", may_differ=["net", "more"]), module)
    assert "2 are missing there, 3 have another shape" in " ".join("".join(capfd.readouterr()).split())


@pytest.mark.parametrize(
    ("write", "said"),
    [(lambda path: torch.save(Draws(), path), "start_from: "), (lambda path: path.write_bytes(b"x" * 600), "neither"),
     (lambda path: path.mkdir(), "has no checkpoint yet"), (lambda path: None, "No such file"),
     (lambda path: torch.save({"a": {}}, path), "start_from.key")],
)  # fmt: skip
def test_a_file_without_weights_is_refused_with_its_name(tmp_path: Path, write, said: str) -> None:
    write(tmp_path / "a.ckpt")
    with pytest.raises(UserError, match=said) as refused:
        begin_with(StartWeights(path=tmp_path / "a.ckpt"), Net())
    assert str(tmp_path) in str(refused.value)


def test_a_recipe_names_it_by_its_path_alone_or_with_what_may_differ(tmp_path: Path, capsys) -> None:
    recipe = str(ROOT / "recipes/lightning/boring.yaml")
    weights(tmp_path / "a.ckpt")
    assert main(["check", recipe, f"start_from={tmp_path / 'a.ckpt'}"]) == 0
    assert main(["check", recipe, f"start_from.path={tmp_path / 'a.ckpt'}", "start_from.may_differ=[layer]"]) == 0
