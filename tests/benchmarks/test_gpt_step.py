"""Tests that the benchmark of a GPT step beside transformers runs, on one layer and few tokens."""

from pathlib import Path

import pytest

from tests.support.benchmarks import figures_of, module_of


def test_one_layer_of_both_is_equal_and_measured(capsys: pytest.CaptureFixture[str]):
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    gpt_step = module_of("gpt_step")
    gpt_step.WORDS = 500
    assert gpt_step.measure(1, 8, torch.float32, 1, 30.0) > 0
    said = capsys.readouterr().out
    assert "nemo_vfm GPT" in said and "LlamaForCausalLM" in said


@pytest.mark.soak
def test_both_precisions_are_measured(tmp_path: Path):
    figures = figures_of("gpt_step", "--quick", "--rounds", "1", folder=tmp_path)
    assert set(figures) == {"tokens_per_s_ratio", "tokens_per_s_ratio_fp32"}
