"""Tests that modules which know nothing of recipes are trained by one as Lightning alone would train them."""

from argparse import Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from torch.utils.data import DataLoader, TensorDataset

from nemo_vfm.cli.main import main
from nemo_vfm.core.seed import derive
from nemo_vfm.train.lightning.resume import seed_all

SGD: Any = partial(torch.optim.SGD, lr=0.05)
STEP = partial(torch.optim.lr_scheduler.StepLR, step_size=1, gamma=0.5)
HERE = "tests.train.lightning.test_unchanged_modules"
TRUST = ("--trust", HERE, "--trust", "argparse.Namespace")


class Rows(LightningDataModule):
    """Sixteen rows in their order; what is not named is passed on, as many do."""

    def __init__(self, data_dir: str = "data/", batch_size: int = 4, **kwargs: Any) -> None:
        super().__init__()
        self.save_hyperparameters(logger=False)
        self.batch_size, self.scale = batch_size, kwargs.get("scale", 1.0)

    def train_dataloader(self) -> DataLoader[Any]:
        rows = torch.linspace(0, self.scale, 64).reshape(16, 4)
        return DataLoader(TensorDataset(rows, rows.sum(1, keepdim=True)), batch_size=self.batch_size)


class Dense(torch.nn.Module):
    def __init__(self, input_size: int = 4, hidden: int = 8) -> None:
        super().__init__()
        self.model = torch.nn.Sequential(torch.nn.Linear(input_size, hidden), torch.nn.Linear(hidden, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.model(x)
        return made


class Template(LightningModule):
    """As the Hydra template has it."""

    def __init__(
        self, net: torch.nn.Module, optimizer: torch.optim.Optimizer, scheduler: torch.optim.lr_scheduler, compile: bool  # type: ignore[valid-type]
    ) -> None:  # fmt: skip
        super().__init__()
        self.save_hyperparameters(logger=False, ignore=["net"])
        self.net = net

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        loss = (self.net(batch[0]) - batch[1]).square().mean()
        self.log("train/loss", loss, on_step=False, on_epoch=True)
        return loss

    def configure_optimizers(self) -> Any:
        hparams: Any = self.hparams
        optimizer = hparams.optimizer(params=self.trainer.model.parameters())  # type: ignore[union-attr]
        if hparams.scheduler is None:
            return {"optimizer": optimizer}
        scheduler = hparams.scheduler(optimizer=optimizer)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "monitor": "train/loss"}}


class TimeSeries(LightningModule):
    """As repositories of time series have it: some arguments by name, the others in a namespace and by `**kwargs`."""

    def __init__(self, configs, loss=None, lr=0.01, **kwargs):  # type: ignore[no-untyped-def]
        super().__init__()
        self.net = Dense(configs.seq_len, **kwargs)
        self.loss, self.lr = loss or torch.nn.MSELoss(), lr

    @classmethod
    def from_dataset(cls, seq_len, **kwargs):  # type: ignore[no-untyped-def]
        return cls(Namespace(seq_len=seq_len), **kwargs)

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        loss: torch.Tensor = self.loss(self.net(batch[0]), batch[1])
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=self.lr)


def build_template(hidden):  # type: ignore[no-untyped-def]
    """A function that says nothing of what it makes."""
    return Template(Dense(hidden=hidden), SGD, None, compile=False)  # type: ignore[arg-type]


#: What a recipe says of a module, and the same in Python.
MODULES: dict[str, tuple[str, Callable[[], LightningModule]]] = {
    "the template": (
        "{_target_: @Template, net: {_target_: @Dense, hidden: 6}, compile: false, "
        "optimizer: {_target_: torch.optim.SGD, _partial_: true, lr: 0.05}, "
        "scheduler: {_target_: torch.optim.lr_scheduler.StepLR, _partial_: true, step_size: 1, gamma: 0.5}}",
        lambda: Template(Dense(hidden=6), SGD, STEP, compile=False)),
    "a time series": (
        "{_target_: @TimeSeries, configs: {_target_: argparse.Namespace, seq_len: 4}, hidden: 6, lr: 0.02}",
        lambda: TimeSeries(Namespace(seq_len=4), hidden=6, lr=0.02)),
    "a class method": ("{_target_: @TimeSeries.from_dataset, seq_len: 4, hidden: 5}",
                       lambda: TimeSeries.from_dataset(4, hidden=5)),
    "a function": ("{_target_: @build_template, hidden: 3}", lambda: build_template(3)),
}  # fmt: skip


def fit(module: str) -> str:
    return ("_target_: nemo_vfm.train.lightning_fit.LightningFit\nrun_dir: out\nseed: 5\naccelerator: cpu\n"
            f"trainer: {{max_epochs: 2}}\ndata: {{_target_: @Rows, scale: 2.0}}\nmodule: {module}\n"
            ).replace("@", f"{HERE}.")  # fmt: skip


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """Of the last checkpoint, whose hyperparameters may be objects of any class."""
    (*_, newest) = sorted((folder / "checkpoints").glob("step-*.ckpt"))
    state: dict[str, torch.Tensor] = torch.load(newest, weights_only=False)["state_dict"]
    return state


@pytest.mark.parametrize(("text", "made"), MODULES.values(), ids=MODULES)
def test_a_module_that_nobody_changed_gets_the_weights_of_lightning_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, made: Callable[[], LightningModule]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fit.yaml").write_text(fit(text))
    assert main(["run", "fit.yaml", *TRUST]) == 0
    seed_all(derive(5, "initial weights"))
    module = made()
    Trainer(max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False).fit(module, datamodule=Rows(scale=2.0))  # fmt: skip
    found = weights(tmp_path / "out")
    assert found.keys() == module.state_dict().keys()
    assert all(torch.equal(found[name], value) for name, value in module.state_dict().items())


@pytest.mark.parametrize("slot", ["module", "data", "callbacks.mine"])
def test_classes_of_pytorch_lightning_are_refused_in_a_check_with_the_remedy(
    slot: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("mine_of_old.py").write_text("import pytorch_lightning as pl\nclass Net(pl.LightningModule): ...\n"
                  "class Data(pl.LightningDataModule): ...\nclass Call(pl.Callback): ...\n")  # fmt: skip
    Path("fit.yaml").write_text(fit("{_target_: lightning.pytorch.demos.boring_classes.BoringModel}"))
    name = {"module": "Net", "data": "Data"}.get(slot, "Call")
    words = ["fit.yaml", *TRUST, "--trust", "mine_of_old", f"{slot}={{_target_: mine_of_old.{name}}}"]
    for verb in ("check", "run"):
        assert main([verb, *words]) == 2
        said = " ".join("".join(capsys.readouterr()).split())
        assert f"{name} uses classes of pytorch_lightning" in said and "import lightning.pytorch as pl" in said
