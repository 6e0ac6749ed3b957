# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""The benchmark of the quickstart, in short: it ends, and says what it is asked for."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.repository import ROOT


@pytest.mark.soak
def test_the_quick_benchmark_of_the_quickstart_gives_its_figures(tmp_path: Path):
    words = [sys.executable, str(ROOT / "benchmarks/quickstart.py"), "--quick", "--json", str(tmp_path / "out.json")]
    called = subprocess.run(
        words, capture_output=True, text=True, timeout=600, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert called.returncode == 0, called.stderr[-2000:]
    figures = json.loads((tmp_path / "out.json").read_text())
    assert figures.keys() == {"shape_accuracy", "colour_accuracy", "direction_accuracy", "seam_ratio", "training_s"}
    assert all(0 <= figures[name] <= 1 for name in figures if name.endswith("accuracy")) and figures["seam_ratio"] > 0
