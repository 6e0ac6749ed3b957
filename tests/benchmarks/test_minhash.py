"""Tests the benchmark of near-duplicate texts: its pairs lie around the threshold, and its figures are there."""

from pathlib import Path

import pytest

from tests.support.benchmarks import figures_of, module_of


def test_made_texts_lie_on_both_sides_of_the_threshold():
    benchmark = module_of("minhash")
    texts = benchmark.made_texts(400)
    pairs = [(a, b) for first in range(0, 200, 4) for a in range(first, first + 4) for b in range(first, a)]
    sets = [benchmark.shingles(text) for text in texts]
    above = sum(benchmark.similarity(sets[a], sets[b]) >= benchmark.THRESHOLD for a, b in pairs)
    assert 0.1 < above / len(pairs) < 0.6 and len(benchmark.true_pairs(texts)) == above


@pytest.mark.slow
def test_a_small_run_finds_nearly_all_and_nothing_false(tmp_path: Path):
    figures = figures_of("minhash", "--texts", "4000", folder=tmp_path)
    assert set(figures) == {"recall", "false_pairs", "cpu_s", "peak_gb"}
    assert figures["recall"] > 0.98 and figures["false_pairs"] == 0
