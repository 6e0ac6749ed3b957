"""Tests that a curation with a balance books what it drops, repeats rare groups and counts buckets."""

import json

import pytest

from nemo_vfm.core.types.job import Run
from nemo_vfm.curate.balance import Balance
from nemo_vfm.data.batching.bucket import Bucket, Buckets
from nemo_vfm.data.shards.shard_files import ShardSet
from tests.support.films import job, pan, write_film

BUCKETS = Buckets(buckets={"long": Bucket(64, 64, 30, 12), "longer": Bucket(64, 64, 40, 12)})


@pytest.fixture(scope="module")
def films(tmp_path_factory):
    """Two files of three shots and of one."""
    folder = tmp_path_factory.mktemp("films")
    write_film(folder / "many.mp4", pan(1), pan(2, 30), pan(3, 34))
    write_film(folder / "one.mp4", pan(4, 26))
    return folder


def test_what_is_too_much_of_a_file_is_dropped_by_balance_and_the_ledger_adds_up(films, tmp_path):
    job(films, balance=Balance(by="source", caps={"*": 2})).run(Run(tmp_path))
    clips = json.loads((tmp_path / "ledger.json").read_text())["clips"]
    assert (clips["in"], clips["kept"], clips["dropped"]) == (4, 3, {"balance": 1})
    assert json.loads((tmp_path / "balance.json").read_text())["groups"]["many.mp4"]["kept"] == 2
    assert [entry.index["weight"] for entry in ShardSet(tmp_path / "shards").entries] == [1, 1, 1]


def test_a_rare_group_counts_more_than_once(films, tmp_path):
    job(films, balance=Balance(by="source", shares={"one.mp4": 0.4}, repeat=2)).run(Run(tmp_path))
    weights = {e.index["source"]: e.index["weight"] for e in ShardSet(tmp_path / "shards").entries}
    assert weights == {"many.mp4": 1, "one.mp4": 2}


def test_buckets_are_counted_and_what_the_others_lack_is_said(films, tmp_path):
    job(films, buckets=BUCKETS).run(Run(tmp_path))
    found = json.loads((tmp_path / "buckets.json").read_text())
    assert {name: amount["clips"] for name, amount in found["buckets"].items()} == {"long": 2, "longer": 0}
    assert [miss["needs"] for miss in found["nearest_misses"]] == ["4 more frames", "6 more frames"]
    assert "weight" not in ShardSet(tmp_path / "shards").entries[0].index


def test_without_them_the_files_of_an_earlier_run_go(films, tmp_path):
    job(films, buckets=BUCKETS, balance=Balance(by="source", caps={"*": 2})).run(Run(tmp_path))
    job(films).run(Run(tmp_path))
    assert not (tmp_path / "buckets.json").exists() and not (tmp_path / "balance.json").exists()


def test_a_balance_by_labels_that_no_stage_gives_is_refused_at_once(films):
    with pytest.raises(ValueError, match="nothing gives such labels; there are bucket, source"):
        job(films, balance=Balance(by="camera", caps={"*": 2}))
