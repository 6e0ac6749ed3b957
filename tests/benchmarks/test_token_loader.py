"""Tests that both sides of the token loading benchmark give the same sequences, and that it gives its figures."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.repository import ROOT

pytestmark = pytest.mark.slow  # a whole benchmark


def test_the_quick_benchmark_of_token_loading_gives_its_figures(tmp_path: Path):
    words = [sys.executable, str(ROOT / "benchmarks/token_loader.py"), "--quick", "--rounds", "1"]
    called = subprocess.run(
        [*words, "--json", str(tmp_path / "out.json")], capture_output=True, text=True, timeout=300,
        env={**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(tmp_path)},
    )  # fmt: skip
    assert called.returncode == 0, called.stderr[-2000:]
    figures = json.loads((tmp_path / "out.json").read_text())
    names = ("tokens_per_s_ratio", "tokens_per_s_ratio_documents", "tokens_per_s_ratio_bare")
    assert tuple(figures) == names and figures["tokens_per_s_ratio"] > 1
