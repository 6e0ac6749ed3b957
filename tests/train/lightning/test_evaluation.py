"""Tests that jobs test, validate and predict with the weights that they name, and write what came of it."""

import json
import sys
from collections import namedtuple
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MeanMetric

from nemo_vfm.cli.main import main
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.types.job import Run
from nemo_vfm.report.parts.plain_text import figure
from nemo_vfm.train.lightning import prediction_files as predictions
from nemo_vfm.train.lightning.best import KeepBest, find_checkpoint
from nemo_vfm.train.lightning.evaluation import LightningPredict, LightningTest, LightningValidate
from nemo_vfm.train.lightning.fit_settings import TrainerOptions
from nemo_vfm.train.lightning_fit import LightningFit
from tests.support import preloaded
from tests.support.repository import ROOT

HERE = "tests.train.lightning.test_evaluation"


class Numbers(LightningDataModule):
    """The numbers from 0, in batches of four."""

    def __init__(self, count: int = 22, loaders: int = 1) -> None:
        super().__init__()
        self.count, self.loaders = count, loaders

    def train_dataloader(self):
        return DataLoader(TensorDataset(torch.arange(self.count, dtype=torch.float32)[:, None]), batch_size=4)

    def predict_dataloader(self):
        made = [self.train_dataloader() for _ in range(self.loaders)]
        return made if self.loaders > 1 else made[0]

    val_dataloader = test_dataloader = train_dataloader


class Line(LightningModule):
    """Learns to double; says what it is told to of each batch."""

    def __init__(self, returns=lambda x, y: y) -> None:
        super().__init__()
        self.layer, self.returns = torch.nn.Linear(1, 1), returns

    def training_step(self, batch, batch_idx):
        return (self.layer(batch[0]) - 2 * batch[0]).square().mean()

    def validation_step(self, batch, batch_idx):
        self.log("error", (self.layer(batch[0]) - 2 * batch[0]).abs().mean())

    test_step = validation_step

    def predict_step(self, batch, batch_idx, dataloader_idx=0):
        return self.returns(batch[0], self.layer(batch[0]))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.1)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training whose best checkpoint is its first."""
    folder = tmp_path_factory.mktemp("fitted")
    LightningFit(module=Line, data=Numbers, trainer=TrainerOptions(max_epochs=2, val_check_interval=2),
                 accelerator="cpu", keep_best=KeepBest(metric="error", mode="max")).run(Run(folder))  # fmt: skip
    assert find_checkpoint(folder, "best") != find_checkpoint(folder, "last")
    return folder


def by_lightning(path: Path, kind: str) -> float:
    """The error with the weights of a checkpoint, without us."""
    module = Line()
    module.load_state_dict(torch.load(path, weights_only=True)["state_dict"])
    trainer = Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
                      enable_model_summary=False)  # fmt: skip
    (found,) = getattr(trainer, kind)(module, datamodule=Numbers(), verbose=False)
    return found["error"]


@pytest.mark.parametrize(("job", "kind"), [(LightningTest, "test"), (LightningValidate, "validate")])
@pytest.mark.parametrize("ckpt", ["best", "last", "path"])
def test_the_figures_are_those_of_the_trainer_with_the_checkpoint(tmp_path, fitted, job, kind, ckpt):
    path = find_checkpoint(fitted, "best" if ckpt == "path" else ckpt)
    where = {"ckpt": path} if ckpt == "path" else {"ckpt": ckpt, "trained": fitted}
    outcome = job(module=Line, data=Numbers, accelerator="cpu", **where).run(Run(tmp_path))
    assert outcome.figures == {"error": pytest.approx(by_lightning(path, kind), rel=1e-6)}
    kept = json.loads((tmp_path / "figures.json").read_text())
    assert kept["figures"] == outcome.figures and kept["kind"] == kind and Path(kept["weights"]) == path


def predict(folder: Path, trained: Path, returns=lambda x, y: y, **more) -> dict[str, list]:
    data = partial(Numbers, **more.pop("numbers", {}))
    job = LightningPredict(module=partial(Line, returns), data=data, trained=trained, accelerator="cpu", **more)
    job.run(Run(folder))
    return pq.read_table(folder / "predictions.parquet").to_pydict()


Pair = namedtuple("Pair", "twice text")
RETURNS = {
    "a tensor": (lambda x, y: x[:, 0], {"prediction": lambda n: float(n)}),
    "a tensor of rows": (lambda x, y: torch.cat([x, x + 1], 1), {"prediction": lambda n: [n, n + 1]}),
    "more dimensions": (lambda x, y: x[:, :, None].expand(-1, 2, 3), {"prediction": lambda n: [[n] * 3] * 2}),
    "bf16": (lambda x, y: x[:, 0].bfloat16(), {"prediction": lambda n: float(n)}),
    "a dict": (lambda x, y: {"a": x[:, 0], "b": {"c": [str(int(n)) for n in x], "d": 7}},
               {"a": float, "b.c": str, "b.d": lambda n: 7}),
    "a tuple": (lambda x, y: (x[:, 0], {"n": x[:, 0].numpy()}), {"prediction_0": float, "prediction_1.n": float}),
    "a named tuple": (lambda x, y: Pair(2 * x[:, 0], [f"{n:.0f}" for n in x[:, 0]]), {"twice": lambda n: 2 * n,
                                                                                        "text": str}),
    "a dict of each sample": (lambda x, y: [{"box": torch.ones(int(n) % 3)} for n in x[:, 0]],
                              {"box": lambda n: [1.0] * (n % 3)}),
}  # fmt: skip


@pytest.mark.parametrize("returns", RETURNS)
def test_columns_follow_from_what_a_step_returns_and_rows_from_the_data(tmp_path, fitted, returns):
    step, expected = RETURNS[returns]
    found = predict(tmp_path, fitted, step)
    assert found == {name: [value(n) for n in range(22)] for name, value in expected.items()}
    assert {path.name for path in tmp_path.iterdir()} == {"predictions.parquet", "figures.json"}
    assert json.loads((tmp_path / "figures.json").read_text())["figures"] == {"rows": 22}


def test_a_module_predicts_with_the_weights_that_are_named(tmp_path, fitted):
    for which in ("best", "last"):
        layer = torch.load(find_checkpoint(fitted, which), weights_only=True)["state_dict"]
        found_here = predict(tmp_path / which, fitted, ckpt=which)["prediction"]
        expected = layer["layer.weight"].item() * np.arange(22) + layer["layer.bias"].item()
        assert np.allclose(np.array(found_here)[:, 0], expected, rtol=1e-5)


def test_each_of_several_loaders_has_a_file_and_no_other_file_is_removed(tmp_path, fitted):
    (tmp_path / "predictions-labelled.parquet").touch()
    (tmp_path / "predictions-7.parquet").touch()  # of a run before
    data = partial(Numbers, loaders=2)
    LightningPredict(module=Line, data=data, trained=fitted, accelerator="cpu").run(Run(tmp_path))
    assert [pq.read_metadata(tmp_path / f"predictions-{n}.parquet").num_rows for n in (0, 1)] == [22, 22]
    assert {path.name[12:-8] for path in tmp_path.glob("predictions-*")} == {"0", "1", "labelled"}


@pytest.mark.parametrize(
    ("returns", "said"),
    [(lambda x, y: {"a": x[:, 0], "b": x[:1, 0]}, r"different lengths \(a 4, b 1\)"),
     (lambda x, y: {"a": x[:, 0]} if x[0] < 9 else {"b": x[:, 0]}, r"batch 3 .*columns b \(float\), but the first"),
     (lambda x, y: {"a": x[:, 0]} if x[0] < 9 else {"a": ["x"] * 4}, "must return the same for each batch"),
     (lambda x, y: {"a": object()}, "no Parquet column")],
)  # fmt: skip
def test_what_is_no_table_is_refused_with_the_batch(tmp_path, fitted, returns, said):
    with pytest.raises(UserError, match=said):
        predict(tmp_path, fitted, returns)
    assert predict(tmp_path, fitted, lambda x, y: x[:, 0])["prediction"] == [*range(22)], "and begun anew"


@pytest.mark.parametrize("count", [22, 3, 9000])
def test_the_rows_of_ranks_are_put_into_the_order_of_the_data(tmp_path, monkeypatch, count):
    """Rank r has the rows r, r + 3 and so on, in batches of its own; more of them than are merged at a time."""
    monkeypatch.setattr(predictions, "_GROUP_BYTES", 4000)
    parts = []
    for rank in range(3):
        part = predictions._RankRows(tmp_path / f"{rank}.parquet", predictions._table(torch.zeros(1), "").schema)
        own = torch.arange(rank, count, 3, dtype=torch.float32)
        for batch in own.split(100):
            part.add(predictions._table(batch, ""), "")
        part.close()
        parts.append(tmp_path / f"{rank}.parquet")
    whole = pq.read_table(predictions._merge(parts, tmp_path / "whole.parquet"))
    assert whole["prediction"].to_pylist() == [*range(count)]


def test_only_a_few_rows_are_held(tmp_path, monkeypatch):
    monkeypatch.setattr(predictions, "_GROUP_BYTES", 1000)
    table = predictions._table(torch.zeros(100), "")
    part = predictions._RankRows(tmp_path / "a.parquet", table.schema)
    for _ in range(50):
        part.add(table, "")
        assert sum(one.nbytes for one in part._held) < 1000
    part.close()
    assert pq.read_metadata(tmp_path / "a.parquet").num_rows == 5000


def test_which_weights_must_be_said(tmp_path, fitted):
    with pytest.raises(ValueError, match="ckpt is best, but of which run"):
        LightningTest(module=Line, ckpt="best")
    with pytest.raises(UserError, match="has no checkpoint yet"):
        LightningTest(module=Line, data=Numbers, trained=tmp_path, accelerator="cpu").run(Run(tmp_path / "run"))
    with pytest.raises(UserError, match=r"^ckpt: bets: .*No such file"):
        LightningTest(module=Line, data=Numbers, ckpt=Path("bets"), accelerator="cpu").run(Run(tmp_path / "run"))
    own = LightningPredict(module=Line, data=Numbers, ckpt=None, accelerator="cpu").run(Run(tmp_path / "own"))
    assert own.summary == "predicted with the module's own weights"


def test_a_module_without_the_step_is_a_users_error(tmp_path, fitted):
    class Bare(Line):
        test_step = LightningModule.test_step

    with pytest.raises(UserError, match="test_step"):
        LightningTest(module=Bare, data=Numbers, trained=fitted, accelerator="cpu").run(Run(tmp_path))


@pytest.mark.slow  # a whole workflow
def test_a_recipe_fits_tests_and_predicts_and_its_report_has_the_figures(tmp_path, capsys):
    recipe = str(ROOT / "recipes/lightning/fit_test_predict.yaml")
    words = ["--trust", "tests", f"steps.fit.module._target_={HERE}.Line", f"steps.fit.data._target_={HERE}.Numbers",
             "steps.fit.keep_best.metric=error", "steps.fit.trainer.max_epochs=2",
             f"run_dir={tmp_path / 'run'}"]  # fmt: skip
    assert main(["run", recipe, *words]) == 0, capsys.readouterr().err
    figures = json.loads((tmp_path / "run/test/figures.json").read_text())["figures"]
    assert figures["error"] == pytest.approx(by_lightning(find_checkpoint(tmp_path / "run/fit", "best"), "test"))
    page = (tmp_path / "run/report.html").read_text()
    assert ">Test</h2>" in page and ">Predictions</h2>" in page and ">Samples</h2>" not in page
    assert f">{figure(figures['error'])}<" in page
    assert pq.read_metadata(tmp_path / "run/predict/predictions.parquet").num_rows == 22


def run_steps(folder: Path, steps: str) -> None:
    (folder / "recipe.yaml").write_text(f"_target_: nemo_vfm.workflow.Workflow\nsteps:\n{steps}")
    command = [sys.executable, "-m", "nemo_vfm", "run", str(folder / "recipe.yaml"), "--trust", "tests",
               f"run_dir={folder / 'run'}"]  # fmt: skip
    done = preloaded.run(command, timeout=400)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.cluster
def test_two_ranks_predict_the_rows_of_one_in_the_same_order(tmp_path, fitted):
    """In the step narrow only the training before it is on two: rank 0 predicts alone."""
    one = f"module: {{_target_: {HERE}.Line}}, data: {{_target_: {HERE}.Numbers}}, accelerator: cpu"
    fit = f"{{_target_: nemo_vfm.train.lightning_fit.LightningFit, {one}, trainer: {{max_epochs: 2}}, devices: 2"
    predict = f"{{_target_: nemo_vfm.train.lightning.evaluation.LightningPredict, {one}, trained: '${{run_dir}}/fit'"
    run_steps(tmp_path, f"  fit: {fit}, keep_best: {{metric: error, mode: min}}}}\n"
                        f"  wide: {predict}, ckpt: best, devices: 2}}\n"
                        f"  narrow: {predict}, ckpt: best, devices: 1}}\n")  # fmt: skip
    layer = torch.load(find_checkpoint(tmp_path / "run/fit", "best"), weights_only=True)["state_dict"]
    for step in ("wide", "narrow"):
        rows = np.array(pq.read_table(tmp_path / f"run/{step}/predictions.parquet")["prediction"].to_pylist())[:, 0]
        assert np.allclose(rows, layer["layer.weight"].item() * np.arange(22) + layer["layer.bias"].item(), rtol=1e-5)


class Measured(Line):
    """Its metric asks torch for other ranks."""

    def __init__(self):
        super().__init__()
        self.mean = MeanMetric()

    def test_step(self, batch, batch_idx):
        self.mean(batch[0])
        self.log("mean", self.mean)


@pytest.mark.cluster
def test_steps_of_one_rank_wait_for_none_of_the_ranks_beside_them(tmp_path):
    one = f"module: {{_target_: {HERE}.Measured}}, data: {{_target_: {HERE}.Numbers}}, accelerator: cpu"
    fit = f"{{_target_: nemo_vfm.train.lightning_fit.LightningFit, {one}, trainer: {{max_epochs: 1}}"
    test = f"{{_target_: nemo_vfm.train.lightning.evaluation.LightningTest, {one}, trained: '${{run_dir}}/wide'}}"
    run_steps(tmp_path, f"  narrow: {fit}}}\n  wide: {fit}, devices: 2, start_from: '${{run_dir}}/narrow'}}\n"
                        f"  test: {test}\n  last: {fit}, devices: 2}}\n")  # fmt: skip
    assert json.loads((tmp_path / "run/test/figures.json").read_text())["figures"]["mean"] == pytest.approx(10.5)
