"""Tests that both sides of the token loading benchmark give the same sequences, and that it gives its figures."""

from pathlib import Path

import pytest

from tests.support.benchmarks import figures_of

pytestmark = pytest.mark.slow  # a whole benchmark


def test_the_quick_benchmark_of_token_loading_gives_its_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path))
    figures = figures_of("token_loader", "--quick", "--rounds", "1", folder=tmp_path)
    names = ("tokens_per_s_ratio", "tokens_per_s_ratio_documents", "tokens_per_s_ratio_bare")
    assert tuple(figures) == names and figures["tokens_per_s_ratio"] > 1
