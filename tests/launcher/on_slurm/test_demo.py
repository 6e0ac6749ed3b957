"""Tests that the quickstart gives the same outputs with one command, with and without a real Slurm."""

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.support.repository import ROOT
from tests.support.slurm import Slurm

HERE = "cluster.environment={MASTER_ADDR: 127.0.0.1, GLOO_SOCKET_IFNAME: lo, OMP_NUM_THREADS: '1'}"
STEPS = ("videos", "curate", "encode", "train", "sample", "baseline", "evaluate")
#: What is compared; and what says when something was, how long it took and where.
_COMPARED = {".safetensors", ".mp4", ".tar", ".parquet"}
_TIMED = {"started.json", "done.json", "throughput.json", "metrics.jsonl", "mfu.json", "manifest.json", "work"}


def called(module: str, *words: str, environment: dict[str, str]) -> str:
    where = {**environment, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-m", module, *words], cwd=ROOT, env=where, capture_output=True, text=True,
                          timeout=3600, check=False)  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return done.stdout


def outputs(run_dir: Path) -> dict[str, str]:
    """Hashes of all that the steps have made."""
    files = [path for step in STEPS for path in sorted((run_dir / step).rglob("*")) if path.is_file()]
    named = {path.relative_to(run_dir): path for path in files if not _TIMED & set(path.relative_to(run_dir).parts)}
    return {str(name): _hash(path) for name, path in named.items() if path.suffix in _COMPARED}


def _hash(file: Path) -> str:
    """Of a checkpoint, of its numbers: each names its run."""
    if file.suffix != ".safetensors":
        return hashlib.sha256(file.read_bytes()).hexdigest()
    tensors = sorted(load_file(file).items())
    return hashlib.sha256(b"".join(name.encode() + tensor.numpy().tobytes() for name, tensor in tensors)).hexdigest()


def headings(run_dir: Path) -> list[str]:
    return re.findall(r"<h[12][^>]*>([^<]*)", (run_dir / "report.html").read_text())


@pytest.mark.soak  # 2 minutes: eight starts of Python with torch; as it is for users, twice what `make demo` takes
@pytest.mark.parametrize("overlay", [("--overlay", "smoke"), ()], ids=["smoke", "whole"])
def test_the_quickstart_as_a_chain_on_slurm_makes_what_one_command_makes(
    real_slurm: Slurm, tmp_path: Path, overlay: tuple[str, ...]
):
    words, cluster = ("quickstart", *overlay), ("cluster=cpu_slurm", "cluster.exclusive=false", HERE, "--no-code")
    told = called("launcher", "submit", *words, f"run_dir={tmp_path / 'apart'}", *cluster,
                  environment=real_slurm.environment)  # fmt: skip
    numbers = re.findall(r"job (\d+)", told)
    assert len(numbers) == len(STEPS)
    for number in numbers:
        assert real_slurm.ended(number, within_s=2400)["JobState"] == "COMPLETED", real_slurm.said()
    called("nemo_vfm", "run", *words, f"run_dir={tmp_path / 'whole'}", environment=dict(os.environ))
    whole = outputs(tmp_path / "whole")
    assert len(whole) > 15 and outputs(tmp_path / "apart") == whole
    assert headings(tmp_path / "apart") == headings(tmp_path / "whole")
