"""Tests that frequent ids get rows of their own, as a count of all ids would give them."""

from collections import Counter

import numpy as np
import pytest
import torch

from nemo_vfm.core.errors import DataError
from nemo_vfm.recsys.log_import import frequent_ids
from nemo_vfm.recsys.log_import.frequent_ids import FrequentIds, IdCounts, read_vocabulary
from nemo_vfm.sparse.jagged import Jagged
from nemo_vfm.sparse.log_chunk import LogChunk
from tests.support.log_samples import random_log


def skewed(size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).zipf(1.3, size) * -3


def chunk_of(ids: np.ndarray) -> LogChunk:
    ones = torch.ones(len(ids), dtype=torch.int64)
    return LogChunk(ones, ones, ones, features={"item": Jagged(torch.from_numpy(ids), ones)})


@pytest.mark.parametrize(("num_rows", "min_count"), [(1, 1), (5, 1), (10**6, 1), (10**6, 3), (30, 2)])
def test_rows_follow_the_counts_of_all_ids(num_rows, min_count):
    ids = skewed(3000)
    chunks = [chunk_of(part) for part in np.array_split(ids, 7)]
    found = FrequentIds(num_rows=9, num_rows_of={"item": num_rows}, min_count=min_count).vocabulary(chunks)
    counts = Counter(ids.tolist())
    ranked = sorted((one for one in counts if counts[one] >= min_count), key=lambda one: (-counts[one], one))
    row_of = {one: row for row, one in enumerate(ranked[: num_rows - 1], 1)}
    unknown = [10**9, -(10**9), 1]
    rows = found.table_rows("item", chunk_of(np.array([*ids.tolist(), *unknown])).features["item"])
    assert rows.values_N.tolist() == [row_of.get(one, 0) for one in [*ids.tolist(), *unknown]]


def test_a_vocabulary_comes_back_and_keeps_lengths(tmp_path):
    log = random_log(200)
    found = FrequentIds(num_rows=50).vocabulary([log.rows(0, 90), log.rows(90, 200)])
    found.write(tmp_path / "vocabulary.safetensors")
    back = read_vocabulary(tmp_path / "vocabulary.safetensors")
    for name, ids in log.features.items():
        assert torch.equal(back.table_rows(name, ids).values_N, found.table_rows(name, ids).values_N)
        assert torch.equal(back.table_rows(name, ids).lengths_B, ids.lengths_B)
    (tmp_path / "vocabulary.safetensors").write_bytes(b"x" * 100)
    with pytest.raises(DataError, match="Delete it"):
        read_vocabulary(tmp_path / "vocabulary.safetensors")


def test_counts_in_little_memory_are_too_low_by_no_more_than_they_say():
    ids, counts = skewed(20_000), IdCounts(100)
    for part in np.array_split(ids, 300):
        counts.add(part)
    found, truth = dict(zip(*map(np.ndarray.tolist, counts.totals()), strict=True)), Counter(ids.tolist())
    assert 0 < counts.missed < 400
    assert all(found.get(one, 0) <= count <= found.get(one, 0) + counts.missed for one, count in truth.items())
    assert [one for one, _ in truth.most_common(8)] == sorted(found, key=lambda one: -found[one])[:8]


def test_more_different_ids_than_are_counted_at_once_are_told_with_how_much_is_missed(monkeypatch):
    told = []
    monkeypatch.setattr(frequent_ids, "warn", told.append)
    chunks = [chunk_of(part) for part in np.array_split(skewed(3000), 30)]
    for counted_ids in (10**6, 20):
        FrequentIds(num_rows=50, counted_ids=counted_ids).vocabulary(chunks)
    assert len(told) == 1 and "more than 20 different ids" in told[0]


def test_settings_that_cannot_be_are_refused():
    for settings in ({"num_rows": 0}, {"num_rows": 5, "min_count": 0}, {"num_rows": 5, "num_rows_of": {"a": 0}}):
        with pytest.raises(ValueError, match="must be at least 1"):
            FrequentIds(**settings)
