"""Tests that the context-parallel benchmark counts the bytes of the formulas, on two ranks and few tokens."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.repository import ROOT

pytestmark = pytest.mark.slow  # a whole benchmark


def test_what_is_sent_is_what_the_formulas_say(tmp_path: Path) -> None:
    words = ["benchmarks/context_parallel.py", "--quick", "--ranks", "2", "--json", str(tmp_path / "out.json")]
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["max_bytes_over_formula"] == pytest.approx(1.0, abs=0.05)
    assert found["min_bytes_over_formula"] == pytest.approx(1.0, abs=0.05)
    for scheme in ("all_gather", "ring", "ulysses"):
        assert f"2 ranks, {scheme:12} causal" in done.stdout
        assert found[f"seconds_{scheme}_2"] > 0
