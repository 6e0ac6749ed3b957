"""Tests that the benchmark of LoRA beside PEFT runs, on one layer and few tokens."""

from pathlib import Path

import pytest
import torch

from tests.support.benchmarks import figures_of, module_of
from tests.support.installed import skip_without

skip_without("diffusers", "peft")

FIGURES = ["tokens_per_s_ratio", "memory_over_peft", "file_over_adapter"]


@pytest.mark.slow  # several models and two profiled runs
def test_one_layer_of_ours_and_of_the_peer_is_measured(tmp_path: Path) -> None:
    lora = module_of("lora")
    figures = lora.measure(lora.Shape(1, 1, 8), 1, 30.0, tmp_path)
    assert list(figures) == FIGURES and min(figures.values()) > 0.2
    assert figures["file_over_adapter"] < 1.02


@pytest.mark.slow  # see above
def test_models_that_do_not_learn_the_same_are_not_compared(tmp_path: Path) -> None:
    lora = module_of("lora")
    shape = lora.Shape(1, 1, 8)
    lora.prepare(shape, tmp_path)
    competitors = [lora.our_side(shape, tmp_path), lora.their_side(shape, tmp_path)]
    with torch.no_grad():
        competitors[0].learning[1].mul_(1.1)
    with pytest.raises(SystemExit, match="they do not learn the same"):
        lora.require_equal(competitors)


@pytest.mark.soak
def test_all_figures_are_written(tmp_path: Path) -> None:
    assert list(figures_of("lora", "--quick", "--rounds", "1", folder=tmp_path)) == FIGURES
