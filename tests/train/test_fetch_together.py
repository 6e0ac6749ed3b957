"""Tests that ranks with the same samples fetch each byte once, and train as before."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from nemo_vfm.config import build, compose, trust_list
from nemo_vfm.core.types.job import Run
from nemo_vfm.data.sources.blend import Blend, BlendSource
from nemo_vfm.data.sources.shard_data import ShardData
from tests.support import tiny_training as tiny
from tests.support.ranks import on_ranks

LAYOUT = ("parallel.tensor=2", "loop.validation=null")


def fetched(rank: int, words: list[str]) -> dict[str, Any]:
    """What a rank of the training got from the storage, from the others, and beside the plan; and its last loss."""
    composed = compose(tiny.RECIPE, words, overlays=["smoke"])
    folder = Path(next(word for word in words if word.startswith("run_dir=")).partition("=")[2])
    job = build(composed, trust_list([tiny.NAME]))
    figures = job.run(Run(folder, composed.to_yaml(), composed.seed)).figures
    return {**asdict(job.data.traffic), "loss": figures["loss"]}


@pytest.mark.cluster
def test_a_pair_gets_each_byte_once_and_the_losses_stay(tmp_path: Path) -> None:
    data = tiny.shards(tmp_path / "shards")
    apart = on_ranks(2, fetched, tiny.changes(data, tmp_path / "apart", *LAYOUT, steps=2))
    together = on_ranks(
        2, fetched, tiny.changes(data, tmp_path / "together", *LAYOUT, "data.fetch_together=true", steps=2)
    )
    assert [one["loss"] for one in together] == [one["loss"] for one in apart]
    assert all(one["fetched"] == 0 for one in apart), "nothing is counted where each reads for itself"
    one, other = (rank["fetched"] for rank in together)
    assert one > 5_000 and abs(one - other) < 100, "the halves of every batch differ by a byte"
    assert all(rank["alone"] == 0 for rank in together)


def test_sources_of_a_blend_cannot_fetch_together(tmp_path: Path) -> None:
    source = BlendSource(ShardData(shards=tmp_path, batch_size=4, fetch_together=True))
    with pytest.raises(ValueError, match="sources of a blend cannot set fetch_together"):
        Blend(sources={"a": source})
