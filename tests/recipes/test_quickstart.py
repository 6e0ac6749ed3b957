"""Tests a small quickstart from the command line: its files, a second run, and a kill."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from nemo_vfm.cli.main import main
from tests.support import preloaded

ROOT = Path(__file__).parents[2]
SMALL = [
    "--overlay", "smoke", "steps.train.loop.duration=6 steps", "steps.train.loop.checkpoint.every_steps=2",
    "steps.train.loop.checkpoint.keep_last=null", "steps.train.loop.validation.every_steps=3",
    "steps.train.callbacks.preview.every_steps=6", "steps.train.data.batch_size=4", "steps.sample.prompts.num=4",
]  # fmt: skip


def command(run_dir: Path, *overrides: str) -> list[str]:
    """`nemo-vfm run recipes/quickstart.yaml`, small."""
    recipe = str(ROOT / "recipes/quickstart.yaml")
    return [sys.executable, "-m", "nemo_vfm", "run", recipe, f"run_dir={run_dir}", *SMALL, *overrides]


def run(run_dir: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    return preloaded.run(command(run_dir, *overrides))


def adds_up(ledger: dict[str, dict[str, object]]) -> bool:
    """In = kept + dropped + failed, in files, clips and seconds."""
    return all(
        abs(line["in"] - line["kept"] - sum(line["dropped"].values()) - sum(line["failed"].values())) < 1e-6
        for line in ledger.values()
    )


def weights(run_dir: Path) -> dict[str, torch.Tensor]:
    """The averaged weights after the last step."""
    return load_file(run_dir / "train/checkpoints/step-00000006/ema.safetensors")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("quickstart") / "run"
    done = run(run_dir)
    assert done.returncode == 0, done.stderr[-3000:]
    assert str(run_dir / "report.html") in done.stdout
    return run_dir


@pytest.mark.slow
def test_every_step_leaves_what_the_next_one_and_the_report_need(finished: Path) -> None:
    ledger = json.loads((finished / "curate/ledger.json").read_text())
    assert adds_up(ledger)
    assert ledger["files"]["in"] == 5
    assert ledger["files"]["dropped"]["exact_duplicate"] == 1
    assert sum(ledger["files"]["failed"].values()) == 1
    assert ledger["clips"]["dropped"]["near_duplicate"] >= 1
    evaluation = json.loads((finished / "evaluate/evaluation.json").read_text())
    assert {"colour_accuracy", "direction_accuracy", "untrained"} <= evaluation.keys()
    assert len(json.loads((finished / "evaluate/nearest.json").read_text())) == 4
    steps = [json.loads(line)["step"] for line in (finished / "train/metrics.jsonl").read_text().splitlines()]
    assert steps == [1, 2, 3, 4, 5, 6]
    assert (finished / "train/samples/step-00000006.mp4").is_file()
    assert (finished / "recipe.yaml").is_file()
    assert (finished / "manifest.json").is_file()


@pytest.mark.slow
def test_the_report_is_one_page_without_scripts_that_names_every_prompt(finished: Path) -> None:
    page = (finished / "report.html").read_text()
    assert "<script" not in page
    assert not re.findall(r"(?:src|href)=[\"']https?:", page)
    assert all(entry["prompt"] in page for entry in json.loads((finished / "sample/samples.json").read_text()))


@pytest.mark.slow
def test_a_second_run_does_nothing_and_says_so(finished: Path) -> None:
    files = {path: path.stat().st_mtime_ns for path in (finished / "train/checkpoints").rglob("*") if path.is_file()}
    again = run(finished)
    assert again.returncode == 0
    assert "done earlier" in again.stderr + again.stdout
    assert all(path.stat().st_mtime_ns == when for path, when in files.items())


@pytest.mark.slow
def test_a_run_killed_while_training_continues_to_the_same_weights(finished: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    shutil.copytree(finished, run_dir, ignore=shutil.ignore_patterns("train", "sample", "baseline", "evaluate"))
    running = preloaded.Started(command(run_dir), err=tmp_path / "said")
    deadline = time.monotonic() + 300
    while not (run_dir / "train/checkpoints/step-00000002").is_dir():
        assert running.poll() is None and time.monotonic() < deadline, (tmp_path / "said").read_text()
        time.sleep(0.02)
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()
    assert not (run_dir / "train/done.json").exists()
    again = run(run_dir, "--only", "train")
    assert again.returncode == 0, again.stderr[-3000:]
    assert "resuming at step" in re.sub(r"\s+", " ", again.stderr)
    whole, resumed = weights(finished), weights(run_dir)
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


@pytest.mark.slow  # a quickstart on real videos, 16 s
@pytest.mark.skipif("NEMO_VFM_TEST_DATA" not in os.environ, reason="NEMO_VFM_TEST_DATA is not set")
def test_a_users_own_folder_with_hostile_files_ends_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir, videos = tmp_path / "run", tmp_path / "videos"
    too_long = shutil.ignore_patterns("sintel*")  # 40 s of film, of whose kind there are others
    shutil.copytree(f"{os.environ['NEMO_VFM_TEST_DATA']}/videos", videos, ignore=too_long)
    words = command(run_dir, f"input={videos}", "steps.train.loop.duration=2 steps", "steps.sample.prompts.num=2")
    assert main(words[3:]) == 0, capsys.readouterr().err[-3000:]
    ledger = json.loads((run_dir / "curate/ledger.json").read_text())
    assert adds_up(ledger)
    assert ledger["files"]["in"] == 10
    assert ledger["files"]["kept"] >= 4
    samples = json.loads((run_dir / "sample/samples.json").read_text())
    assert samples
    assert all(entry["attributes"] is None for entry in samples)
