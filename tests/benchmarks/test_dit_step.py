"""Tests that the benchmark of a DiT step beside diffusers runs, on one layer and few tokens."""

from pathlib import Path

import pytest

from tests.support.benchmarks import figures_of, module_of


def test_one_layer_of_ours_and_of_both_peers_is_measured(capsys: pytest.CaptureFixture[str]):
    torch = pytest.importorskip("torch")
    pytest.importorskip("diffusers")
    dit_step = module_of("dit_step")
    assert dit_step.measure(dit_step.Shape(1, 1, 4), torch.float32, 1, 30.0) > 0
    said = capsys.readouterr().out
    assert all(name in said for name in ("nemo_vfm DiT", "WanTransformer3DModel", "CosmosTransformer3DModel"))


@pytest.mark.soak
def test_both_precisions_are_measured(tmp_path: Path):
    figures = figures_of("dit_step", "--quick", "--rounds", "1", folder=tmp_path)
    assert tuple(figures) == ("tokens_per_s_ratio_fp32", "tokens_per_s_ratio_bf16")
