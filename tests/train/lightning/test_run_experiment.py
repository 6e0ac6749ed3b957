"""Tests that a module finds loggers that take pictures, a folder and a checkpoint callback, on every rank."""

import json
import sys
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lightning.pytorch import LightningDataModule, LightningModule
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader

from nemo_vfm.core import log
from nemo_vfm.core.types.job import Run
from nemo_vfm.report.page import all_sections
from nemo_vfm.report.parts.run_values import RunFolder
from nemo_vfm.train.lightning import run_experiment
from nemo_vfm.train.lightning.fit_settings import TrainerOptions
from nemo_vfm.train.lightning.run_experiment import RunExperiment
from nemo_vfm.train.lightning_fit import LightningFit
from nemo_vfm.train.loggers import TensorBoard
from tests.support import preloaded


class Squares(LightningDataModule):
    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(torch.linspace(-1, 1, 8 * 16).reshape(8, 1, 4, 4), batch_size=2)  # type: ignore[arg-type]


class Gan(LightningModule):
    """Two networks that learn from each other by hand; it draws at the end of each epoch, as people write it."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.generator, self.discriminator = nn.Linear(3, 16), nn.Linear(16, 1)
        self.validation_z = torch.linspace(-1, 1, 6).reshape(2, 3)
        self.register_buffer("epochs_drawn", torch.tensor(0))

    def training_step(self, batch: torch.Tensor) -> None:
        generator, discriminator = self.optimizers()
        for optimizer, sign in ((generator, -1), (discriminator, 1)):
            fake = self.discriminator(self.generator(torch.randn(len(batch), 3)))
            loss = sign * (fake - self.discriminator(batch.flatten(1))).mean()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
        self.log_dict({"d_loss": loss, "g_loss": -loss})

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(one.parameters(), lr=1e-3) for one in (self.generator, self.discriminator)]

    def on_train_epoch_end(self) -> None:
        self.epochs_drawn += 1
        grid = self.generator(self.validation_z).sigmoid().reshape(1, 8, 4)
        for logger in self.loggers:
            logger.experiment.add_image("generated_images", grid, self.current_epoch)
            logger.experiment.add_scalar("drawn", grid.mean(), self.current_epoch)
        folders = [self.trainer.log_dir, self.logger.log_dir, self.trainer.checkpoint_callback.dirpath]
        Path(self.trainer.default_root_dir, f"folders-{self.global_rank}.json").write_text(json.dumps(folders))

    def on_train_end(self) -> None:
        newest = self.trainer.checkpoint_callback
        assert newest.best_model_path == newest.last_model_path and newest.best_model_score is None
        assert Path(newest.last_model_path).is_file()


@pytest.mark.parametrize("loggers", [{}, {"board": TensorBoard()}], ids=["alone", "with TensorBoard"])
def test_what_a_gan_draws_stands_in_the_run_folder_and_in_the_report(tmp_path: Path, loggers: Any) -> None:
    options = TrainerOptions(max_epochs=3, log_every_n_steps=1)
    LightningFit(module=Gan, data=Squares, accelerator="cpu", trainer=options, loggers=loggers).run(Run(tmp_path))
    require_drawn(tmp_path, with_board=bool(loggers))


def require_drawn(folder: Path, *, with_board: bool, ranks: int = 1) -> None:
    """The pictures, the numbers, and where every rank was told to write."""
    found = sorted((folder / "pictures/generated_images").iterdir())
    assert [path.name for path in found] == [f"step-{epoch:08d}.png" for epoch in range(3)]
    assert all(Image.open(path).size == (4, 8) for path in found)
    (section,) = [one for one in all_sections(RunFolder.open(folder)) if one.title == "Pictures"]
    assert str(section.body).count("<img") == 3 and "generated images" in str(section.body)
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    assert sum("drawn" in line for line in lines) == 3
    newest = torch.load(max((folder / "checkpoints").iterdir()), weights_only=True)
    assert newest["state_dict"]["epochs_drawn"] == 3, (
        "what the module does at an epoch's end comes before its checkpoint"
    )
    board = folder / "tensorboard" if with_board else folder
    for rank in range(ranks):
        told = json.loads((folder / f"folders-{rank}.json").read_text())
        assert [*map(Path, told)] == [board, board, folder / "checkpoints"]


@pytest.mark.cluster
def test_on_two_ranks_the_first_draws_and_the_others_find_the_same_folders(tmp_path: Path) -> None:
    recipe = {
        "_target_": "nemo_vfm.train.lightning_fit.LightningFit", "module": {"_target_": f"{__name__}.Gan"},
        "data": {"_target_": f"{__name__}.Squares"}, "accelerator": "cpu", "devices": 2,
        "strategy": "ddp_find_unused_parameters_true", "trainer": {"max_epochs": 3, "log_every_n_steps": 1},
        "loggers": {"board": {"_target_": "nemo_vfm.train.loggers.TensorBoard"}},
    }  # fmt: skip
    (tmp_path / "fit.yaml").write_text(json.dumps(recipe))
    words = ["run", str(tmp_path / "fit.yaml"), "--trust", "tests", f"run_dir={tmp_path / 'run'}"]
    done = preloaded.run([sys.executable, "-m", "nemo_vfm", *words], timeout=400)
    assert done.returncode == 0, done.stderr[-3000:]
    require_drawn(tmp_path / "run", with_board=True, ranks=2)


def drawn(folder: Path) -> list[Path]:
    return sorted((folder / run_experiment.FOLDER).rglob("*.png"))


@settings(max_examples=25)
@given(tag=st.text(max_size=300))
def test_no_tag_leads_out_of_the_folder_of_pictures_and_short_ones_can_be_read_back(tmp_path_factory, tag: str) -> None:
    folder = tmp_path_factory.mktemp("run")
    RunExperiment(folder, print).add_image(tag, torch.rand(3, 2, 2), 7)
    (path,) = drawn(folder)
    assert path.parent.parent == folder / run_experiment.FOLDER and path.name == "step-00000007.png"
    assert [one for one in folder.rglob("*") if one.is_file()] == [path]
    assert len(path.parent.name) > 90 or unquote(path.parent.name) == (tag or " ")


def test_numbers_of_names_pictures_and_pixels_have_bounds(tmp_path: Path, monkeypatch, caplog) -> None:
    monkeypatch.setattr(run_experiment, "MAX_TAGS", 3)
    monkeypatch.setattr(run_experiment, "MAX_A_TAG", 4)
    log.warn_once.cache_clear()
    kept = RunExperiment(tmp_path, print)
    for number in range(30):
        kept.add_image(f"of its own {number}", torch.rand(1, 2, 2))
        kept.add_image("of its own 0", torch.rand(1, 2, 2), number)
    assert {path.parent.name for path in drawn(tmp_path)} == {f"of%20its%20own%20{number}" for number in range(3)}
    numbers = [int(path.stem[5:]) for path in drawn(tmp_path) if path.parent.name.endswith("0")]
    assert len(numbers) <= 4 and numbers[0] == 0 and numbers[-1] == 29
    kept.add_image("of its own 1", torch.rand(3, 300, 2 * run_experiment.MAX_SIDE_PX), 10**20)
    assert Image.open(tmp_path / f"pictures/of%20its%20own%201/step-{run_experiment.MAX_STEP}.png").size == (1024, 150)


def test_every_order_and_type_of_the_same_picture_gives_the_same_pixels(tmp_path: Path) -> None:
    whole = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    fractions = torch.from_numpy(whole).permute(2, 0, 1) / 255 + 1e-4
    kept = RunExperiment(tmp_path, print)
    kept.add_image("a", whole, 0, dataformats="HWC")
    kept.add_image("b", fractions.requires_grad_(), 0)
    kept.add_images("c", fractions[None], 0)
    kept.add_image("d", np.ascontiguousarray(whole.transpose(1, 2, 0)), 0, dataformats="WCH")
    buffer = BytesIO()
    Image.fromarray(whole).save(buffer, "PNG")
    kept.add_figure("e", SimpleNamespace(savefig=lambda file, format: file.write(buffer.getvalue())), 0)
    assert len(drawn(tmp_path)) == 5
    assert all(np.array_equal(np.asarray(Image.open(path)), whole) for path in drawn(tmp_path))
    kept.add_images("eleven", np.repeat(whole[None], 11, 0), 0, dataformats="NHWC")
    grid = np.asarray(Image.open(tmp_path / "pictures/eleven/step-00000000.png"))
    assert grid.shape == (10, 56, 3) and np.array_equal(grid[5:, 14:21], whole) and not grid[5:, 21:].any()
    kept.add_image("nan", torch.full((2, 2), torch.nan), 0, dataformats="HW")
    with pytest.raises(ValueError, match=r"'x' has shape \(3, 4\), which is not CHW; give its order as dataformats"):
        kept.add_image("x", torch.rand(3, 4), 0)
    with pytest.raises(ValueError, match="has 2 channels; give 1, 3 or 4"):
        kept.add_image("x", torch.rand(2, 3, 4), 0)


def test_a_call_that_keeps_nothing_says_so_once_and_one_that_summary_writer_lacks_is_an_error(tmp_path, capfd) -> None:
    log.warn_once.cache_clear()
    lines = list[Mapping[str, Any]]()
    kept = RunExperiment(tmp_path, lines.append)
    for step in range(3):
        kept.add_histogram("weights", torch.rand(3), step)
        kept.add_text("note", "text", step)
    kept.add_scalars("loss", {"a": 1.0, "b": 2.0}, 3)
    kept.flush()
    kept.close()
    said = " ".join(capfd.readouterr().err.split())
    assert said.count("experiment.add_histogram, which the run folder does not keep") == said.count("add_text") == 1
    assert lines == [{"loss/a": 1.0, "loss/b": 2.0}]
    with pytest.raises(AttributeError, match="which has no 'log'; name the logger that has it"):
        kept.log({"loss": 1.0})
