"""Tests that every family of the parity table with transformers stays below its bound."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.repository import ROOT


@pytest.mark.soak
def test_every_family_is_the_same_function_in_transformers(tmp_path: Path):
    pytest.importorskip("transformers", reason="needs the extra transformers")
    words = [sys.executable, str(ROOT / "benchmarks/gpt_parity.py"), "--quick", "--json", str(tmp_path / "out.json")]
    called = subprocess.run(
        words, capture_output=True, text=True, timeout=300, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert called.returncode == 0, called.stdout + called.stderr[-2000:]
    found = json.loads((tmp_path / "out.json").read_text())
    assert len(found["rows"]) == 12 and found["worst"] < 1e-4
    assert all(row["largest"] > 0.5 for row in found["rows"])  # scores that are all zero would be equal, too
