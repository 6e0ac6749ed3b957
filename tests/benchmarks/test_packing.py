# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""The benchmark of packing, in short: it ends, and says what it is asked for."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.support.repository import ROOT


def test_the_quick_benchmark_of_packing_gives_its_figures(tmp_path: Path):
    words = [sys.executable, str(ROOT / "benchmarks/packing.py"), "--quick", "--rounds", "1"]
    called = subprocess.run(
        [*words, "--json", str(tmp_path / "out.json")], capture_output=True, text=True, timeout=300,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert called.returncode == 0, called.stderr[-2000:]
    figures = json.loads((tmp_path / "out.json").read_text())
    assert figures.keys() == {"tokens_per_s_ratio", "pack_time_s"}
    assert figures["tokens_per_s_ratio"] > 0 and 0 < figures["pack_time_s"] < 5
