"""Tests that ranks with shared fetching get plain loading's batches, fetch each byte once and never wait forever."""

import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save

from nemo_vfm.core.storage.uri import Address
from nemo_vfm.data.loader.fetch_exchange import Plan, Span, plan
from nemo_vfm.data.shards.shard_files import Entry, ShardSet, ShardWriter
from nemo_vfm.data.shards.shard_upload import upload_shards
from nemo_vfm.data.sources.shard_data import ShardData
from nemo_vfm.parallel.ranks.gather import Gather
from tests.data import conftest
from tests.data.conftest import LatentShards, actions, mp4
from tests.data.test_shard_data import contents, take
from tests.support.object_store import BUCKET, Failing
from tests.support.peers import NUM_RANKS, PAIR_TIMEOUT_S, TIMEOUT_S, Case, data_of, digest, run

SMALL, LONG = [2, 1, 2, 2], [2, 3, 2, 2]
MIXED = [SMALL, LONG, SMALL, SMALL, LONG, SMALL, SMALL, LONG, SMALL, SMALL, SMALL]
ENTRY = Entry("a", "a.tar", {})
Seen = dict[str, object]


@given(st.lists(st.integers(0, 5000), max_size=9), st.integers(1, 9))
def test_shares_are_equal_to_a_byte_and_make_up_the_whole_in_order(sizes: list[int], num_ranks: int) -> None:
    spans = [Span(ENTRY, 10_000 * number, size) for number, size in enumerate(sizes)]
    wanted = Plan(0, tuple(spans))
    shares = [wanted.share(rank, num_ranks) for rank in range(num_ranks)]
    counts = [sum(cut.end - cut.begin for cut in share) for share in shares]
    assert sum(counts) == sum(sizes) and max(counts) - min(counts) <= 1
    line = [(cut.span, byte) for share in shares for cut in share for byte in range(cut.begin, cut.end)]
    assert line == [(number, byte) for number, size in enumerate(sizes) for byte in range(size)]


def test_a_sample_that_comes_twice_in_a_batch_is_fetched_once(tmp_path: Path) -> None:
    with ShardWriter(tmp_path) as writer:
        writer.write("a", {"mp4": bytes(700), "txt": b"words", "json": b"{}"}, {"caption": "words"})
    shards = ShardSet(tmp_path)
    wanted = plan(0, [shards.entries[0]] * 3, shards)
    assert [span.size for span in wanted.spans] == [700, 2], "the caption is in the index, the rate is not"


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    folder = tmp_path_factory.mktemp("shards")
    make = conftest.latent_shards.__wrapped__(folder)  # the fixture's own function, for a longer scope
    good, bad = make(MIXED, name="good"), make([SMALL] * 9, bad={4: b"rubbish"}, name="bad")
    with ShardWriter(folder / "films") as writer:
        for number in range(5):
            facts = {"width": 80, "height": 64, "num_frames": 12, "fps": 8.0}  # its caption is in a member of its own
            film = {"mp4": mp4(seed=number), "txt": f"film {number}".encode(), **actions(number)}
            writer.write(f"film-{number}", film, facts)
    three, ahead, key = {"batch_size": 3}, {"num_workers": 2}, f"{4:032x}"
    two, square = {"batch_size": 2, "num_workers": 1, "members": ("actions",)}, (32, 32, 5)
    same_places = make(MIXED, bad={0: save({"latents": torch.full(SMALL, 7.5)})}, name="same places")
    listed = [
        Case("four", good, arguments=three),
        Case("four ahead", good, arguments=three | ahead),
        Case("pairs", good, group_size=2, arguments={"batch_size": 4}),
        Case("films", folder / "films", num_batches=3, buckets=square, arguments=two),
        Case("bad sample", bad, arguments=three),
        Case("a disk", good, arguments=three, fails={2: (key, "DataError")}),
        Case("a store", good, arguments=three | ahead, fails=dict.fromkeys((1, 2), (key, "StoreUnreachable"))),
        Case("a bug", good, arguments=three | ahead, fails={1: (key, "NothingKept")}),
        Case("out of step", good, arguments=three, firsts={3: 1}),
        Case("a straggler", good, arguments=three | ahead, slow_s={2: 0.05}),
        Case("another seed", good, arguments=three, seeds={1: 4}),
        Case("other shards", good, arguments=three, folders={1: bad}),
        Case("another copy", good, arguments=three, folders={1: same_places}, num_batches=4),
        Case("killed", good, arguments=three, num_batches=50, dies_after={3: 2}),
        Case("stopped", good, group_size=2, arguments={"batch_size": 4}, num_batches=50, hangs_after={1: 3}),
    ]  # fmt: skip
    return {case.name: case for case in listed}


@pytest.fixture(scope="module")
def seen(cases: dict[str, Case], tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Seen]]:
    return run(list(cases.values()), tmp_path_factory.mktemp("ranks"))


def plainly(case: Case, rank: int = 0, num_ranks: int = 1) -> tuple[list[str], int]:
    """The batches of plain loading, and the bytes it takes from the shards, a sample's once a batch."""
    data, digests, num_bytes = data_of(case), [], 0
    data.num_workers = 0
    data.start(seed=3, first_batch=0, rank=rank, num_ranks=num_ranks)
    inner, taken = data._open().samples.inner._read, set()

    def read(entry: Entry, name: str, offset: int, size: int) -> bytes:
        taken.add((entry.shard, offset, size))
        return inner(entry, name, offset, size)

    data._open().samples.inner._read = read
    data._open().samples.locate = lambda *_: None  # what is read in place is not counted
    for batch in islice(data.train_dataloader(), case.num_batches):
        digests.append(digest(batch))
        num_bytes += sum(size for _, _, size in taken)
        taken.clear()
    return digests, num_bytes


@pytest.mark.cluster  # several ranks
@pytest.mark.parametrize("name", ["four", "films", "bad sample"])
def test_the_batches_are_those_of_plain_loading_and_the_storage_gives_each_byte_once(cases, seen, name) -> None:
    expected, num_bytes = plainly(cases[name])
    ranks = [rank[name] for rank in seen]
    assert [rank["batches"] for rank in ranks] == [expected] * NUM_RANKS
    traffic = [rank["traffic"] for rank in ranks]
    assert all(t["alone"] == 0 and t["batches"] >= cases[name].num_batches for t in traffic)
    if name != "films":  # it reads ahead, and so has fetched more than was taken
        assert sum(t["fetched"] for t in traffic) == num_bytes
        assert sum(t["gathered"] for t in traffic) == (NUM_RANKS - 1) * num_bytes
    assert all(t["fetched"] + t["gathered"] == traffic[0]["fetched"] + traffic[0]["gathered"] for t in traffic)
    assert max(t["fetched"] for t in traffic) - min(t["fetched"] for t in traffic) <= traffic[0]["batches"]


@pytest.mark.cluster  # several ranks
def test_reading_ahead_changes_nothing(seen) -> None:
    assert all(rank["four ahead"]["batches"] == rank["four"]["batches"] for rank in seen)


@pytest.mark.cluster  # several ranks
def test_data_parallel_pairs_share_their_own_slice(cases, seen) -> None:
    for rank, found in enumerate(seen):
        expected, num_bytes = plainly(cases["pairs"], rank // 2, 2)
        assert found["pairs"]["batches"] == expected
        other = seen[rank ^ 1]["pairs"]["traffic"]
        assert found["pairs"]["traffic"]["fetched"] + other["fetched"] == num_bytes
        assert found["pairs"]["traffic"]["gathered"] == other["fetched"]


@pytest.mark.cluster  # several ranks
def test_a_bad_sample_is_a_fault_on_every_rank_also_where_one_rank_alone_cannot_read_it(seen) -> None:
    for name in ("bad sample", "a disk"):
        ranks = [rank[name] for rank in seen]
        assert all(rank["batches"] == ranks[0]["batches"] and len(rank["batches"]) == 6 for rank in ranks)
        assert all(rank["said"] == ranks[0]["said"] for rank in ranks)
        assert all(rank["faults"] == ranks[0]["faults"] and list(rank["faults"]) == [f"{4:032x}"] for rank in ranks)


@pytest.mark.cluster  # several ranks
def test_a_silent_store_of_one_rank_stops_every_rank_with_the_same_error(seen) -> None:
    errors = [rank["a store"]["error"] for rank in seen]
    assert {kind for kind, _ in errors} == {"StoreUnreachable", "StoreError"}
    assert all("StoreUnreachable on purpose" in text for _, text in errors)
    assert len({len(rank["a store"]["batches"]) for rank in seen}) == 1
    kinds = [rank["a bug"]["error"][0] for rank in seen]
    assert sorted(kinds) == ["LostRank", "LostRank", "LostRank", "NothingKept"]


@pytest.mark.cluster  # several ranks
def test_ranks_out_of_step_notice_before_a_wrong_batch(seen) -> None:
    for rank in seen:
        kind, text = rank["out of step"]["error"]
        assert kind == "LostRank" and "reads batch" in text and rank["out of step"]["batches"] == []


@pytest.mark.cluster  # several ranks
def test_a_slow_rank_changes_nothing_but_the_time(seen) -> None:
    assert all(rank["a straggler"]["batches"] == rank["four"]["batches"] for rank in seen)


@pytest.mark.cluster  # several ranks
@pytest.mark.parametrize("name", ["another seed", "other shards", "another copy"])
def test_a_rank_that_means_other_samples_is_named_before_any_are_mixed(seen, name) -> None:
    for number, rank in enumerate(seen):
        kind, text = rank[name]["error"]
        assert kind == "LostRank" and "must have the same shards, seed and batch_size" in text
        assert f"rank {0 if number == 1 else 1} reads" in text
        whole = seen[number]["four"]["batches"]
        assert name == "another seed" or number == 1 or rank[name]["batches"] == whole[: len(rank[name]["batches"])]


@pytest.mark.cluster  # several ranks
def test_a_rank_that_hangs_ends_its_peer_in_time_with_a_sentence(seen) -> None:
    assert "stopped" not in seen[1]
    kind, text = seen[0]["stopped"]["error"]
    assert kind == "LostRank" and "Another rank stopped or hangs" in text
    assert seen[0]["stopped"]["batches"] == seen[0]["pairs"]["batches"][:3]
    assert PAIR_TIMEOUT_S - 1 < seen[0]["stopped"]["seconds"] < PAIR_TIMEOUT_S + 5


@pytest.mark.cluster  # several ranks
def test_a_killed_rank_ends_the_others_in_time_with_a_sentence(seen) -> None:
    assert "killed" not in seen[3]
    for rank in seen[:3]:
        kind, text = rank["killed"]["error"]
        assert kind == "LostRank" and "Another rank stopped or hangs" in text
        assert len(rank["killed"]["batches"]) == 2 and rank["killed"]["seconds"] < TIMEOUT_S + 5


class InThreads(Gather):
    """Two ranks in one process, for what needs the server of this one."""

    def __init__(self, rank: int, barrier: threading.Barrier, board: list[bytes]) -> None:
        self._rank, self._barrier, self._board = rank, barrier, board

    def rank(self) -> int:
        return self._rank

    def num_ranks(self) -> int:
        return 2

    def all_gather(self, data: bytes) -> list[memoryview]:
        self._board[self._rank] = data
        self._barrier.wait(30)
        rows = [memoryview(row) for row in self._board]
        self._barrier.wait(30)  # nobody writes the next before all have read
        return rows


def test_an_object_store_is_asked_for_each_byte_once_and_for_one_more_range_a_batch(
    failing: Failing, latent_shards: LatentShards
) -> None:
    folder, home = latent_shards([SMALL] * 12, beside=actions), Address(f"s3://{BUCKET}/shards")
    upload_shards(folder, home)
    asked = {"batch_size": 4, "members": ["actions"]}
    here = contents(take(ShardData(shards=folder, **asked), 3))
    ranks, barrier, board = [ShardData(shards=home, **asked) for _ in range(2)], threading.Barrier(2), [b"", b""]
    for rank, data in enumerate(ranks):
        data.share_with(InThreads(rank, barrier, board))
        data.start(seed=0, first_batch=0)
    failing.requests.clear()
    with ThreadPoolExecutor(2) as threads:
        there = list(threads.map(lambda data: contents(islice(data.train_dataloader(), 3)), ranks))
    assert there == [here, here]
    assert len([line for line in failing.requests if line.startswith("GET") and ".tar" in line]) <= 3 * (4 + 1)
    assert [data.traffic.alone for data in ranks] == [0, 0]
    one, two = (data.traffic for data in ranks)
    assert one.gathered == two.fetched and two.gathered == one.fetched and abs(one.fetched - two.fetched) <= 3
