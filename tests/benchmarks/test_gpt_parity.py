"""Tests that every family of the parity table with transformers stays below its bound."""

from pathlib import Path

import pytest

from tests.support.benchmarks import figures_of


@pytest.mark.soak
def test_every_family_is_the_same_function_in_transformers(tmp_path: Path):
    pytest.importorskip("transformers", reason="needs the extra transformers")
    found = figures_of("gpt_parity", "--quick", folder=tmp_path)
    assert len(found["rows"]) == 12 and found["worst"] < 1e-4
    assert all(row["largest"] > 0.5 for row in found["rows"])  # scores that are all zero would be equal, too
