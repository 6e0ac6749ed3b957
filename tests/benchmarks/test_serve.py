"""Tests the benchmark of serving: its requests have the lengths that it says, and its figures are there."""

from pathlib import Path

import pytest

from nemo_vfm.data.tokenizers.folder_tokenizer import FolderTokenizer
from tests.support.benchmarks import figures_of, module_of
from tests.support.tiny_tokenizers import byte_level


def test_requests_are_the_same_each_time_and_within_their_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    byte_level(tmp_path)
    benchmark = module_of("serve")
    monkeypatch.setattr(benchmark, "VOCAB", FolderTokenizer(folder=tmp_path).vocab_size())
    requests = benchmark.requests_of(tmp_path, benchmark.FULL)
    assert requests == benchmark.requests_of(tmp_path, benchmark.FULL) and len(requests) == 64
    lengths = sorted(request.max_new for request in requests)
    assert 24 < lengths[32] < 96 and 1 <= lengths[0] < 20 and 120 < lengths[-1] <= 256


@pytest.mark.soak
def test_the_quick_benchmark_shows_what_it_is_for(tmp_path: Path) -> None:
    figures = figures_of("serve", "--quick", folder=tmp_path)
    assert (
        figures["tokens_per_s_ratio"] > 2 and figures["alone_ratio"] > 0.5
    )  # short texts, on a machine that may be busy
    assert figures["echo_max_difference"] < 1e-4 and figures["room_ratio"] < 1.1
