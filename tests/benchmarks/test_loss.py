"""Tests that the benchmark of the loss of a large vocabulary runs, on few tokens and words, and what it promises."""

from pathlib import Path

import pytest

from tests.support.benchmarks import figures_of, module_of


def test_both_sides_are_equal_and_measured(capsys: pytest.CaptureFixture[str]):
    torch = pytest.importorskip("torch")
    loss = module_of("loss")
    loss.WORDS, loss.WIDTH = 50_000, 16
    memory, _ = loss.measure(1000, torch.float32, 1)
    assert memory < 0.2  # 300 of 1,000 tokens, whose scores the other side holds two times and more
    assert "beside the operands and their gradients" in capsys.readouterr().out


@pytest.mark.soak
def test_it_takes_a_tenth_of_the_memory_and_no_more_time(tmp_path: Path):
    figures = figures_of("loss", "--quick", folder=tmp_path)
    assert figures["memory_ratio"] <= 0.1 and figures["time_ratio"] <= 1.0
