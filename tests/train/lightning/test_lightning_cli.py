"""Tests that a configuration of LightningCLI becomes a recipe that gives the weights of LightningCLI."""

import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from lightning.pytorch import LightningDataModule, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor
from lightning.pytorch.cli import OptimizerCallable, ReduceLROnPlateau
from lightning.pytorch.demos.boring_classes import BoringDataModule, BoringModel
from torch.utils.data import DataLoader, TensorDataset, random_split

from nemo_vfm.cli.main import main
from nemo_vfm.cli.migrate import migrate
from nemo_vfm.cli.migrate.recipe_text import recipe_text
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.optional import available

HERE = "tests.train.lightning.test_lightning_cli"


class Backbone(torch.nn.Module):
    def __init__(self, hidden_dim: int = 8) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(4, hidden_dim), torch.nn.ReLU(), torch.nn.Linear(hidden_dim, 3)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.layers(x)
        return made


class Classifier(LightningModule):
    """As in Lightning's example of a backbone, with an optimizer that the configuration may give."""

    def __init__(
        self, backbone: Backbone | None = None, learning_rate: float = 0.01,
        optimizer: OptimizerCallable = torch.optim.Adam,
    ) -> None:  # fmt: skip
        super().__init__()
        self.backbone, self.learning_rate, self.optimizer = backbone or Backbone(), learning_rate, optimizer

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        loss = torch.nn.functional.cross_entropy(self.backbone(batch[0]), batch[1])
        self.log("train_loss", loss, on_epoch=True)
        return loss

    def validation_step(self, batch: list[torch.Tensor], batch_idx: int) -> None:
        self.log("valid_loss", torch.nn.functional.cross_entropy(self.backbone(batch[0]), batch[1]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return self.optimizer(self.parameters())


class Digits(LightningDataModule):
    """Made and split as it is made, as in the same example."""

    def __init__(self, batch_size: int = 8) -> None:
        super().__init__()
        rows = TensorDataset(torch.randn(64, 4), torch.randint(0, 3, (64,)))
        self.train, self.held_out = random_split(rows, [48, 16])
        self.batch_size = batch_size

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.train, batch_size=self.batch_size)

    def val_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.held_out, batch_size=self.batch_size)


def adam(**more: float) -> Callable[..., torch.optim.Optimizer]:
    """What an `OptimizerCallable` becomes."""
    return lambda params: torch.optim.Adam(params, **more)  # type: ignore[arg-type]


def with_optimizer(module: LightningModule, made: Callable[[Any], Any]) -> LightningModule:
    """The method that LightningCLI gives a module."""
    module.configure_optimizers = lambda: made(module.parameters())  # type: ignore[method-assign]
    return module


def stepped(params: Any) -> Any:
    optimizer = torch.optim.SGD(params, lr=0.05, momentum=0.9)
    return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)]


def watched(params: Any) -> Any:
    optimizer = torch.optim.SGD(params, lr=2.0)
    scheduler = ReduceLROnPlateau(optimizer, monitor="valid_loss", patience=0, factor=0.1)
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "monitor": "valid_loss"}}


#: A configuration, and the training that LightningCLI makes of it, in Python.
CONFIGURATIONS: dict[str, tuple[str, Callable[[], tuple[LightningModule, LightningDataModule, Trainer]]]] = {
    "the demonstration": (
        """
seed_everything: 7
trainer: {max_epochs: 2, accelerator: cpu, gradient_clip_val: 0.5, logger: false, limit_train_batches: 10}
model: {class_path: lightning.pytorch.demos.boring_classes.BoringModel}
data: {class_path: lightning.pytorch.demos.boring_classes.BoringDataModule}
optimizer: {class_path: torch.optim.SGD, init_args: {lr: 0.05, momentum: 0.9}}
lr_scheduler: {class_path: torch.optim.lr_scheduler.StepLR, init_args: {step_size: 1, gamma: 0.5}}
ckpt_path: null
""",
        lambda: (with_optimizer(BoringModel(), stepped), BoringDataModule(),
                 trainer(max_epochs=2, gradient_clip_val=0.5, limit_train_batches=10))),
    "a classifier": (
        """
seed_everything: 11
trainer:
  max_epochs: 3
  accelerator: cpu
  callbacks:
    - class_path: lightning.pytorch.callbacks.EarlyStopping
      init_args: {monitor: valid_loss, patience: 1}
    - class_path: lightning.pytorch.callbacks.LearningRateMonitor
model:
  class_path: @Classifier
  init_args:
    backbone: {class_path: @Backbone, init_args: {hidden_dim: 6}}
    optimizer: {class_path: torch.optim.Adam, init_args: {lr: 0.02}}
data: {class_path: @Digits, init_args: {batch_size: 4}}
""",
        lambda: (Classifier(Backbone(6), optimizer=adam(lr=0.02)), Digits(4),
                 trainer(max_epochs=3, logger=True,
                         callbacks=[EarlyStopping("valid_loss", patience=1), LearningRateMonitor()]))),
    "a plateau": (
        """
seed_everything: 3
trainer: {max_epochs: 4, accelerator: cpu, logger: false, precision: 32, accumulate_grad_batches: 2}
model: {class_path: @Classifier, init_args: {learning_rate: 0.1}}
data: {class_path: @Digits}
optimizer: {class_path: SGD, init_args: {lr: 2.0}}
lr_scheduler: {class_path: ReduceLROnPlateau, init_args: {monitor: valid_loss, patience: 0, factor: 0.1}}
""",
        lambda: (with_optimizer(Classifier(learning_rate=0.1), watched), Digits(),
                 trainer(max_epochs=4, accumulate_grad_batches=2))),
}  # fmt: skip


def trainer(**options: Any) -> Trainer:
    """One that only trains, on a CPU."""
    plain = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_model_summary": False,
        "enable_progress_bar": False,
    }
    return Trainer(**{"accelerator": "cpu", **plain, **options})


def by_hand(text: str, made: Callable[[], tuple[LightningModule, LightningDataModule, Trainer]]) -> LightningModule:
    seed_everything(yaml.safe_load(text)["seed_everything"], workers=True)
    module, data, theirs = made()
    theirs.fit(module, data)
    return module


def by_lightning_cli(text: str, made: object) -> LightningModule:
    from lightning.pytorch.cli import LightningCLI

    Path("theirs.yaml").write_text(text)
    cli = LightningCLI(args=["fit", "--config", "theirs.yaml", "--trainer.enable_checkpointing=false",
                             "--trainer.enable_progress_bar=false", "--trainer.logger=CSVLogger",
                             "--trainer.logger.save_dir=logs"])  # fmt: skip
    return cli.model


needs_it = pytest.mark.skipif(not available("jsonargparse"), reason="LightningCLI needs jsonargparse")


@pytest.mark.parametrize("trained", [by_hand, pytest.param(by_lightning_cli, marks=needs_it)])
@pytest.mark.parametrize(("text", "made"), CONFIGURATIONS.values(), ids=CONFIGURATIONS)
def test_a_migrated_configuration_gives_the_weights_of_lightning_cli(
    text: str, made: Any, trained: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["theirs"])
    Path("theirs.yaml").write_text(text := text.replace("@", f"{HERE}."))
    assert main(["migrate", "theirs.yaml", "-o", "ours.yaml"]) == 0
    said = capsys.readouterr().out
    assert "ours.yaml passes the check" in said
    trust = shlex.split(said.partition("nemo-vfm check ours.yaml")[2])
    assert main(["check", "ours.yaml", *trust]) == 0
    assert main(["run", "ours.yaml", "run_dir=out", *trust]) == 0
    (*_, newest) = sorted(Path("out/checkpoints").glob("step-*.ckpt"))
    found = torch.load(newest, weights_only=False)["state_dict"]
    expected = trained(text, made).state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def values(text: str) -> dict[str, Any]:
    """What a text becomes, by address."""
    return migrate(text, "theirs.yaml", "lightning-cli").draft.values


def test_each_class_stands_where_a_recipe_has_it_and_each_callback_has_a_name() -> None:
    found = values("""
seed_everything: true
model: {width: 4, layers: [{class_path: a.One, init_args: {n: 1}}, {class_path: a.Two, dict_kwargs: {m: 2}}]}
trainer:
  precision: bf16
  devices: 2
  strategy: {class_path: DDPStrategy, init_args: {static_graph: true}}
  logger: {class_path: lightning.pytorch.loggers.WandbLogger, init_args: {project: p, save_dir: out}}
  callbacks: [{class_path: pytorch_lightning.callbacks.early_stopping.EarlyStopping}, {class_path: a.Own},
              {class_path: b.Own}]
  max_epochs: null
  max_steps: 10
  check_val_every_n_epoch: null
""")
    layers = {key.removeprefix("module.layers."): value for key, value in found.items() if "layers" in key}
    assert layers == {"0._target_": "a.One", "0.n": 1, "1._target_": "a.Two", "1.m": 2}
    assert found["module._target_"] == "???" and found["module.width"] == 4 and found["seed"] == 0
    assert (found["trainer.precision"], found["devices"], found["trainer.max_steps"]) == ("bf16-mixed", 2, 10)
    assert found["trainer.max_epochs"] == -1 and found["trainer.check_val_every_n_epoch"] is None
    assert found["strategy._target_"] == "lightning.pytorch.strategies.DDPStrategy"
    assert found["strategy.static_graph"] is True
    assert found["loggers.wandb._target_"].endswith("WeightsAndBiases") and found["loggers.wandb.project"] == "p"
    assert found["callbacks.early_stopping._target_"] == "lightning.pytorch.callbacks.EarlyStopping"
    assert (found["callbacks.own._target_"], found["callbacks.own_2._target_"]) == ("a.Own", "b.Own")


def test_every_key_of_a_configuration_has_one_fate_and_secrets_and_references_are_not_carried() -> None:
    text = """
fit:
  seed_everything: 1
  trainer: {max_epochs: 1, default_root_dir: out, profiler: {class_path: a.Profiler}, logger: true, plugins: null}
  model: {class_path: a.Net, init_args: {api_key: hunter22hunter, root: "${oc.env:HOME}", none: null, rest: {}}}
  data: a.Data
  ckpt_path: last.ckpt
  own_argument: 3
test: {ckpt_path: best}
"""
    found = migrate(text, "theirs.yaml")
    fates = {entry.key.path: entry.fate for entry in found.entries}
    assert found.form.title == "LightningCLI" and len(fates) == len(found.entries) == 15
    left = {path for path, fate in fates.items() if fate.verdict == "left"}
    assert left == {"fit.trainer.default_root_dir", "fit.trainer.profiler.class_path", "fit.trainer.logger",
                    "fit.trainer.plugins", "fit.model.init_args.api_key", "fit.model.init_args.rest",
                    "fit.own_argument", "test.ckpt_path"}  # fmt: skip
    assert all(fate.why for fate in fates.values() if fate.verdict == "left")
    ours = found.draft.values
    assert ours["module.root"] == "???" and ours["module.none"] is None and ours["data._target_"] == "a.Data"
    assert ours["start_from"] == "last.ckpt" and "begins with its weights" in found.draft.differences[0]


def test_a_schedule_without_its_optimizer_is_refused_and_so_is_a_seed_that_numpy_cannot_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    fit = "_target_: nemo_vfm.train.lightning_fit.LightningFit\ntrainer: {max_epochs: 1}\nmodule: {_target_: "
    Path("fit.yaml").write_text(f"{fit}lightning.pytorch.demos.boring_classes.BoringModel}}\n")
    for word, words in (
        ("lr_scheduler={_target_: torch.optim.lr_scheduler.StepLR, step_size: 1}", "but there is none: give optimizer"),
        ("initial_seed=-1", "initial_seed must be at least 0"),
    ):
        assert main(["check", "fit.yaml", word]) == 2
        assert words in " ".join("".join(capsys.readouterr()).split())


def test_line_breaks_in_keys_and_classes_do_not_escape_from_the_comments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("theirs.yaml").write_text(
        'seed_everything: 1\nmodel: {class_path: "a.B\\nrun_dir: /evil", init_args: {"x\\nrun_dir: /evil": "${y}"}}\n'
        'trainer: {callbacks: [{class_path: "c\\nrun_dir: /evil.D"}, Timer, {class_path: "a.\\nrun_dir: /evil"}]}\n'
    )
    main(["migrate", "theirs.yaml", "-o", "ours.yaml"])
    assert not [line for line in Path("ours.yaml").read_text().splitlines() if line.startswith("run_dir")]
    assert not [line for line in capsys.readouterr().out.splitlines() if line.startswith("run_dir")]
    assert "lightning.pytorch.callbacks.Timer" in Path("ours.yaml").read_text()


def test_an_argument_that_is_given_twice_is_taken_once_and_one_of_two_kinds_is_refused() -> None:
    twice = "model: {class_path: a.B, init_args: {n: 1, none: {}}, dict_kwargs: {n: 2}}"
    found = migrate(twice, "theirs.yaml")
    assert found.draft.values["module.n"] == 1
    assert {entry.key.path for entry in found.of("left")} == {"model.dict_kwargs.n", "model.init_args.none"}
    with pytest.raises(UserError, match=r"module\.n of the recipe would be a value and a mapping with m"):
        migrate(twice.replace("n: 2", "n: {m: 2}"), "theirs.yaml")


def test_no_trust_in_more_than_what_a_file_names_is_proposed_and_none_in_the_standard_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("theirs.yaml").write_text(
        "model: {class_path: torch.hub.load, init_args: {a: {class_path: subprocess.Popen, init_args: {args: ls}}}}\n"
    )
    main(["migrate", "theirs.yaml", "-o", "ours.yaml"])
    said = capsys.readouterr().out + Path("ours.yaml").read_text()
    assert set(re.findall(r"--trust (\S+)", said)) == {"torch.hub.load"}


@pytest.mark.parametrize(
    ("devices", "said"), [("auto", "all devices"), ("-1", "all devices"), ("[0, 2]", "2 devices"), ("1", "one device")]
)
def test_devices_are_carried_in_each_of_lightnings_forms_and_ckpt_path_only_where_it_is_one(
    devices: str, said: str
) -> None:
    text = f"seed_everything: 1\ntrainer: {{devices: {devices}, num_nodes: 2}}\nmodel: a.Net\nckpt_path: last\n"
    found = migrate(text, "theirs.yaml")
    assert str(found.draft.values["devices"]).replace("(", "[").replace(")", "]") == devices
    assert "start_from" not in found.draft.values and not found.draft.differences
    assert f"# Hardware: {said} of each of 2 machines." in recipe_text(found, "theirs.yaml", "ours.yaml")
