"""Tests that published throughputs fit our formula, or are known not to, and by how much."""

from types import ModuleType

import pytest

from tests.support.benchmarks import module_of


@pytest.fixture(scope="module")
def published() -> ModuleType:
    return module_of("published_mfu")


def test_nemotrons_ramp_is_42_3_42_3_and_40_9_percent_with_attention_counted_whole(published: ModuleType):
    ours = [row.ours for row in published.nemotron_rows()]
    assert ours == pytest.approx([42.3, 42.3, 40.9], abs=0.05)
    assert all(abs(row.ours - row.published) < 0.2 for row in published.nemotron_rows())
    assert [row.ours for row in published.nemotron_rows("causal")] == pytest.approx([41.4, 41.4, 40.0], abs=0.05)


def test_nemotron_has_the_parameters_that_its_report_says(published: ModuleType):
    model = published.nemotron()
    ends = sum(p.numel() for name, p in model.named_parameters() if name.startswith(("embedding", "head")))
    assert ends == pytest.approx(9.437e9, abs=5e5)
    assert sum(p.numel() for p in model.parameters()) - ends == pytest.approx(331.592e9, abs=5e5)


def test_published_video_rows_fit_or_are_known_not_to(published: ModuleType):
    off = {row.what: row.off for row in published.video_rows()}
    assert abs(off["DiT 7B, 8,192 tokens"]) < 0.02 and abs(off["DiT 28B, 8,192 tokens"]) < 0.02
    assert off["DiT 28B, 65,536 tokens"] == pytest.approx(0.20, abs=0.01)
    assert off["DiT 7B, '74k' as 73,728 tokens"] > 0.09 and abs(off["DiT 7B, '74k' as 65,536 tokens"]) < 0.02
    apart = [value for name, value in off.items() if name.startswith("ST-DiT")]
    assert all(whole > 0.6 and without < 0.07 for whole, without in zip(apart[::2], apart[1::2], strict=True))


def test_dgx_clouds_sequence_counts_keys_and_values_for_every_head(published: ModuleType):
    assert published.sequence_row().off < -0.14
    assert published.all_heads(published.nemotron()) == pytest.approx(10.1, rel=0.002)
