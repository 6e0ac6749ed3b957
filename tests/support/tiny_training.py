"""Makes recipes/diffusion/train_small.yaml tiny: its shards, its command, and what each rank was given."""

import json
import logging
import os
import sys
import time
from pathlib import Path
from typing import Literal

import torch
from safetensors.torch import save

from nemo_vfm.config import build, compose, trust_list
from nemo_vfm.core import log, preemption, ranks
from nemo_vfm.core.types.batch import Batch
from nemo_vfm.core.types.encoders import Codec, TextEncoder
from nemo_vfm.core.types.job import Run
from nemo_vfm.core.types.task import ModelInputs
from nemo_vfm.data.shards.shard_files import ShardWriter
from nemo_vfm.diffusion.denoising_task import Denoise
from nemo_vfm.diffusion.objective import Objective
from nemo_vfm.parallel.checkpoint.checkpoint_folder import list_checkpoints
from nemo_vfm.train.state.train_state import TrainState
from tests.support.repository import ROOT
from tests.support.spread import How, happen

RECIPE = str(ROOT / "recipes/diffusion/train_small.yaml")
NAME = "tests.support.tiny_training"
BATCH, SAMPLES = 4, 40
SAVED = 2  # the first step of which there is a checkpoint, and so on


class Noted(Denoise):
    """Writes down which samples of which step this process computes on.

    Args:
        notes: a folder; each process has a file of its own there.
        poison: the key of a sample whose loss is not a number; none where empty.
        waits: whether the first validation lasts until somebody asks for the end; a file beside the notes says so.
    """

    def __init__(
        self, *, objective: Objective, codec: Codec, text_encoder: TextEncoder, text_dropout: float = 0.1, notes: Path,
        poison: str = "", waits: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(objective=objective, codec=codec, text_encoder=text_encoder, text_dropout=text_dropout)
        self.notes, self.poison, self.waits = notes, poison, waits

    def prepare(self, batch: Batch, *, seed: int, training: bool) -> ModelInputs:
        if training:
            line = json.dumps({"step": batch.index, "rank": ranks.rank(), "keys": batch.keys})
            self.notes.mkdir(exist_ok=True)
            with (self.notes / f"{ranks.rank()}-{os.getpid()}").open("a") as file:
                file.write(line + "\n")
        elif self.waits and not (marker := Path(f"{self.notes}-validates-{ranks.rank()}")).exists():
            marker.touch()
            wait_to_be_asked()
        prepared = super().prepare(batch, seed=seed, training=training)
        if self.poison in batch.keys:
            prepared.targets["clean"][batch.keys.index(self.poison)] = float("nan")
        return prepared


def require_saved(folder: Path, step: int) -> None:
    """Wait for the checkpoint of that step: a thread writes it, and may be slower than the steps after it."""
    end = time.monotonic() + 60
    while not any(int(path.name.rpartition("-")[2]) >= step for path in list_checkpoints(folder)):
        assert time.monotonic() < end, f"no checkpoint of step {step} in {folder}"
        time.sleep(0.01)


def wait_to_be_asked() -> None:
    """Until a signal has asked this process to end."""
    end = time.monotonic() + 240
    while preemption.pending_signal() is None:
        assert time.monotonic() < end, "nobody has asked this process to end"
        time.sleep(0.02)


class Fate:
    """Something comes over one rank, after a step that has a checkpoint before it, so many times.

    Every step takes a little while.

    Args:
        how: what.
        rank: to whom; -1 is all.
        step: after which.
        times: over all attempts.
        pause_s: after every step.
    """

    def __init__(
        self, *, how: How | Literal["terminated", "waits"] = "nothing", rank: int = 1, step: int = 3, times: int = 1,
        pause_s: float = 0.0,
    ) -> None:  # fmt: skip
        self.how, self.rank, self.step, self.times, self.pause_s = how, rank, step, times, pause_s

    def on_step(self, fit: TrainState) -> None:
        time.sleep(self.pause_s)
        marker = fit.run.folder / f"fate-{ranks.rank()}"
        if fit.step != self.step or self.rank not in (-1, ranks.rank()) or self.how == "nothing":
            return
        if (before := len(marker.read_text()) if marker.is_file() else 0) < self.times:
            marker.write_text("x" * (before + 1))
            require_saved(fit.run.folder / "checkpoints", SAVED)
            if self.how == "terminated":
                os.kill(os.getpid(), 15)
            elif self.how == "waits":
                wait_to_be_asked()
            else:
                happen(self.how)


def fate(how: str, *, rank: int = 1, step: int = 3, times: int = 1, pause_s: float = 0.0) -> str:
    """The change that gives a run one."""
    return (f"callbacks.fate={{_target_: {NAME}.Fate, how: {how}, rank: {rank}, step: {step}, times: {times}, "
            f"pause_s: {pause_s}}}")  # fmt: skip


def pids(folder: Path) -> list[int]:
    """Of the ranks that run now and have begun to train."""
    found = [int(file.name.partition("-")[2]) for file in Path(f"{folder}-notes").glob("*-*")]
    return [pid for pid in found if Path(f"/proc/{pid}").exists()]


def shards(folder: Path) -> Path:
    """Latents of random pixels, as the recipe's own codec and text encoder make them."""
    job = build(compose(RECIPE, [f"data.shards={folder}"], overlays=["smoke"]))
    with ShardWriter(folder) as writer:
        for number in range(SAMPLES):
            pixels = torch.rand(1, 3, 9, 48, 48, generator=torch.Generator().manual_seed(number)) * 2 - 1
            latents = job.task.codec.encode(pixels)[0].contiguous()
            caption = f"a red circle moving {number}"
            text, mask = job.task.text_encoder.encode([caption])
            members = {
                "latents.safetensors": save({"latents": latents}),
                "text.safetensors": save({"text": text[0].contiguous(), "mask": mask[0].contiguous()}),
                "txt": caption.encode(),
            }
            facts = {"caption": caption, "fps": 8.0, "bucket": "square", "latent_shape": list(latents.shape)}
            writer.write(f"{number:032x}", members, facts)
    return folder


def changes(data: Path, folder: Path, *more: str, steps: int = 6) -> list[str]:
    """What makes the recipe this small, and its numbers those of any machine."""
    return [
        f"data.shards={data}", f"run_dir={folder}", f"loop.duration={steps} steps", f"data.batch_size={BATCH}",
        "data.val_fraction=0.2", "model.heads=2", f"loop.checkpoint.every_steps={SAVED}",
        "loop.checkpoint.keep_last=null", "loop.validation.every_steps=4", "callbacks.preview.every_steps=6",
        f"task._target_={NAME}.Noted", f"task.notes={folder}-notes", "precision.compute=fp32", *more,
    ]  # fmt: skip


def command(data: Path, folder: Path, *more: str, steps: int = 6) -> list[str]:
    """`nemo-vfm run`, so that whoever starts it gets its exit status."""
    options = [word for word in more if word.startswith("--")]
    words = changes(data, folder, *(word for word in more if not word.startswith("--")), steps=steps)
    return [sys.executable, "-m", "nemo_vfm", "run", RECIPE, "--overlay", "smoke", "--trust", NAME, *words, *options]


def trained(rank: int, words: list[str]) -> list[str]:
    """The training inside a process that has already met the others; what it said there."""
    composed = compose(RECIPE, words, overlays=["smoke"])
    folder = Path(next(word for word in words if word.startswith("run_dir=")).partition("=")[2])
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    log.logger().addHandler(handler)
    try:
        build(composed, trust_list([NAME])).run(Run(folder, composed.to_yaml(), composed.seed))
    finally:
        log.logger().removeHandler(handler)
    return said


def metrics(folder: Path) -> list[dict[str, float]]:
    """The lines of a run, by step; the clock's left out."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [
        {k: v for k, v in line.items() if k not in ("time_s", "samples_per_s", "tokens_per_s", "mfu")} for line in lines
    ]


def notes(folder: Path) -> dict[int, dict[int, list[tuple[str, ...]]]]:
    """`{step: {rank: samples, one entry each time that it was taken}}`."""
    found: dict[int, dict[int, list[tuple[str, ...]]]] = {}
    for file in sorted(Path(f"{folder}-notes").iterdir()):
        for line in map(json.loads, file.read_text().splitlines()):
            found.setdefault(line["step"], {}).setdefault(line["rank"], []).append(tuple(line["keys"]))
    return found
