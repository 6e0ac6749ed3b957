"""Tests FLOPs and utilisation against hand-checked numbers."""

import pytest

from nemo_vfm.core.types.model_traits import Op
from nemo_vfm.models.dit import DiT
from nemo_vfm.perf.flops import FORMULA, PeakFlops, formula, forward_flops, mfu, peak_flops, training_flops

OPS = [Op("linear", 4e12, "a"), Op("attention", 1e12, "b")]


def test_training_counts_every_product_three_times():
    assert forward_flops(OPS) == 5e12 and training_flops(OPS) == 15e12


def test_the_masked_half_counts_by_convention_and_the_formula_says_by_which():
    ops = [*OPS, Op("attention", 2e12, "c", causal=True)]
    assert forward_flops(ops) == 7e12 and forward_flops(ops, "causal") == 6e12
    assert training_flops(ops, "causal") == 18e12
    assert "in full" in formula("full") and "unmasked half" in formula("causal")
    assert all("recomputation" in formula(one) and FORMULA in formula(one) for one in ("full", "causal"))


def test_frozen_linears_count_twice_and_the_formula_says_so():
    assert training_flops(OPS, frozen=True) == 2 * 4e12 + 3 * 1e12
    assert "2 x forward FLOPs of frozen linears" in formula("full", frozen=True)


def test_utilisation_is_work_over_time_over_peak():
    assert mfu(15e12, 3.0, PeakFlops(10e12, "test")) == pytest.approx(0.5)
    assert "3 x" in FORMULA and "peak" in FORMULA
    with pytest.raises(ValueError, match=r"MFU over 0\.0 s"):
        mfu(1.0, 0.0, PeakFlops(1.0, "test"))


@pytest.mark.parametrize(("name", "tflops"), [
    ("NVIDIA H200", 989.4), ("NVIDIA H100 80GB HBM3", 989.4), ("NVIDIA H100 PCIe", 756.0),
    ("NVIDIA A100-SXM4-80GB", 312.0), ("NVIDIA L4", 121.0), ("NVIDIA L40S", 362.05),
])  # fmt: skip
def test_peaks_are_found_by_whole_words_of_the_device_name(name, tflops):
    peak = peak_flops(name)
    assert peak.flops_per_s == pytest.approx(tflops * 1e12) and "dense bf16" in str(peak)


@pytest.mark.parametrize("name", ["Abacus 9000", "NVIDIA RTX A1000"])
def test_the_peak_of_an_unknown_device_is_measured_and_says_so(name):
    peak = peak_flops(name)
    assert 1e8 < peak.flops_per_s < 1e15
    assert "measured" in peak.source and name in peak.source and "TFLOP/s" in str(peak)


def test_a_7b_dit_costs_per_token_what_the_published_table_implies():
    """28 layers of 4096 at 8,192 tokens, 512 text tokens: 6 (14 h^2 + 2 s h + 2 n h) L, about 51.5 GFLOP a token.

    The table's model has a text width of 1,024 and counts neither modulation nor embeddings, which are under 1%.
    """
    import torch

    with torch.device("meta"):
        model = DiT(in_channels=16, text_dim=1024, width=4096, depth=28, heads=32)
    ops = model.ops({"latents_BCTHW": (1, 16, 32, 32, 32), "text_BLD": (1, 512, 1024)})
    assert training_flops(ops) / 8192 == pytest.approx(51.5e9, rel=0.01)
