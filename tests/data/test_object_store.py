"""Tests that shards in an object store give the samples and order of those on a disk, whole or not at all."""

import json
import os
import pickle
import shutil
import signal
import threading
from pathlib import Path

import pytest

from nemo_vfm.core.errors import DataError, StoreUnreachable, UserError
from nemo_vfm.core.storage import object_store
from nemo_vfm.core.storage.uri import Address
from nemo_vfm.data.batching.bucket import Bucket, Buckets
from nemo_vfm.data.shards.shard_cache import ShardCache
from nemo_vfm.data.shards.shard_files import ShardSet, ShardWriter
from nemo_vfm.data.shards.shard_upload import upload_shards
from nemo_vfm.data.sources.shard_data import ShardData
from tests.data.conftest import LatentShards, mp4
from tests.data.test_shard_data import MIXED, SMALL, contents, take
from tests.support import object_store as stored_bucket
from tests.support.object_store import BUCKET, Failing
from tests.support.object_store import Bucket as Store

HOME = Address(f"s3://{BUCKET}/shards")


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.slow
def test_batches_are_the_same_from_the_store_and_from_the_disk_and_after_a_resume(
    bucket: Store, latent_shards: LatentShards, tmp_path: Path, num_workers: int, cached: bool
) -> None:
    folder = latent_shards(MIXED)
    upload_shards(folder, HOME)
    cache = ShardCache(folder=tmp_path / "cache", max_gb=1) if cached else None
    here = contents(take(ShardData(shards=folder, batch_size=3), 8, seed=5))
    there = contents(take(ShardData(shards=HOME, batch_size=3, num_workers=num_workers, cache=cache), 8, seed=5))
    assert here == there
    resumed = ShardData(shards=HOME, batch_size=3, num_workers=num_workers, cache=cache)
    assert contents(take(resumed, 3, first=5, seed=5)) == here[5:]
    held_out = [contents(ShardData(shards=f, batch_size=3, val_fraction=0.4).val_dataloader()) for f in (folder, HOME)]
    assert held_out[0] == held_out[1]


def test_videos_are_decoded_by_forked_workers(bucket: Store, tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "clips") as writer:
        for number in range(4):
            facts = {"caption": "", "fps": 8.0, "width": 80, "height": 64, "num_frames": 12}
            writer.write(f"{number}", {"mp4": mp4(seed=number)}, facts)
    upload_shards(tmp_path / "clips", HOME)
    buckets = Buckets(buckets={"only": Bucket(64, 48, 5, 8.0)})
    here, there = (
        contents(take(ShardData(shards=f, batch_size=2, buckets=buckets, num_workers=n), 2))
        for f, n in ((tmp_path / "clips", 0), (HOME, 1))
    )
    assert here == there


def test_a_sample_of_two_members_is_one_request(failing: Failing, latent_shards: LatentShards) -> None:
    upload_shards(latent_shards([SMALL] * 8), HOME)
    data = ShardData(shards=HOME, batch_size=4)
    take(data, 2)
    failing.requests.clear()
    take(data, 2)
    assert len([line for line in failing.requests if ".tar" in line]) == 8


def test_opening_asks_for_one_list_and_each_index_once(failing: Failing, latent_shards: LatentShards) -> None:
    upload_shards(latent_shards([SMALL] * 20), HOME)
    failing.requests.clear()
    assert len(ShardSet(HOME)) == 20
    gets = [line for line in failing.requests if line.startswith("GET")]
    assert len([line for line in gets if "list-type" in line]) == 1
    assert len(gets) == 1 + 1 + 4 and not any(".tar" in line for line in failing.requests)


@pytest.mark.slow
def test_a_line_that_breaks_stops_the_run_and_does_not_drop_samples(
    failing: Failing, latent_shards: LatentShards
) -> None:
    upload_shards(latent_shards([SMALL] * 8), HOME)
    os.environ["NEMO_VFM_STORE_TIMEOUT_S"] = "1"
    data = ShardData(shards=HOME, batch_size=4, num_workers=1)
    data.start(seed=0, first_batch=0)
    failing.faults[".tar"] = "reset"
    with pytest.raises(StoreUnreachable, match="cannot be reached"):
        next(iter(data.train_dataloader()))
    assert not data.faults.by_sample


def test_a_shard_that_vanishes_costs_its_samples_as_on_a_disk(bucket: Store, latent_shards: LatentShards) -> None:
    upload_shards(latent_shards([SMALL] * 10), HOME)
    shards = ShardSet(HOME)
    bucket.delete(next(key for key in bucket.names() if key.endswith(".tar")))
    with pytest.raises(DataError, match="there is no"):
        shards.read(shards.entries[0], "txt")


def test_an_open_set_can_be_sent_to_another_process(bucket: Store, latent_shards: LatentShards, tmp_path: Path) -> None:
    upload_shards(latent_shards([SMALL] * 3), HOME)
    for cache in (None, ShardCache(folder=tmp_path / "cache", max_gb=1)):
        shards = ShardSet(HOME, cache)
        shards.read(shards.entries[0], "txt")
        copy = pickle.loads(pickle.dumps(shards))
        assert copy.read(copy.entries[2], "txt") == b"caption 2"


def test_damaged_indices_are_told(bucket: Store, latent_shards: LatentShards) -> None:
    upload_shards(latent_shards([SMALL] * 6), HOME)
    index = next(key for key in bucket.names() if key.endswith(".json") and "shard-0" in key)
    whole = bucket.get(index)
    bucket.put(index, whole.replace(b"caption 1", b"caption 9"))
    with pytest.raises(DataError, match="not the index that was written"):
        ShardSet(HOME)
    bucket.put(index, whole)
    bucket.put(index.replace(".json", ".tar"), b"short")
    with pytest.raises(DataError, match="has 5 bytes, but shards"):
        ShardSet(HOME)


def test_a_folder_without_shards_json_is_not_finished(bucket: Store, latent_shards: LatentShards) -> None:
    upload_shards(latent_shards([SMALL] * 3), HOME)
    bucket.delete("shards/shards.json")
    with pytest.raises(UserError, match=r"no shards\.json"):
        ShardSet(HOME)
    with pytest.raises(UserError, match="nothing exists at"):
        ShardSet(HOME / "elsewhere")


def test_the_cache_keeps_to_its_bytes_and_fetches_a_damaged_shard_again(
    bucket: Store, latent_shards: LatentShards, tmp_path: Path
) -> None:
    folder = latent_shards([SMALL] * 20)
    upload_shards(folder, HOME)
    size = (folder / "shard-000000.tar").stat().st_size
    cache = ShardCache(folder=tmp_path / "cache", max_gb=2.5 * size / 1e9)
    for _ in range(2):
        shards = ShardSet(HOME, cache)
        assert [shards.read(entry, "txt") for entry in shards.entries] == [b"caption %d" % n for n in range(20)]
        assert len(list(cache.folder.iterdir())) == 2
    kept = sorted(cache.folder.iterdir(), key=lambda path: path.stat().st_mtime_ns)[-1]
    kept.write_bytes(bytes(kept.stat().st_size))
    shards = ShardSet(HOME, cache)
    assert shards.read(shards.entries[-1], "txt") == b"caption 19" and kept.read_bytes() != bytes(kept.stat().st_size)


def test_the_shard_that_was_not_used_for_longest_makes_room(
    bucket: Store, latent_shards: LatentShards, tmp_path: Path
) -> None:
    folder = latent_shards([SMALL] * 15)
    upload_shards(folder, HOME)
    cache = ShardCache(folder=tmp_path / "cache", max_gb=2.5 * (folder / "shard-000000.tar").stat().st_size / 1e9)
    first, second, third = ShardSet(HOME).entries[::5]
    for at, entry in enumerate((first, second), 1):
        ShardSet(HOME, cache).read(entry, "txt")
        (newest,) = (path for path in cache.folder.iterdir() if path.stat().st_mtime > 1e9)
        os.utime(newest, (at, at))
    ShardSet(HOME, cache).read(first, "txt")
    ShardSet(HOME, cache).read(third, "txt")
    left = {path.stat().st_mtime > 1e9 for path in cache.folder.iterdir()}
    assert left == {True} and len(list(cache.folder.iterdir())) == 2


def test_a_shard_that_another_process_deletes_while_it_is_checked_is_fetched_again(
    bucket: Store, latent_shards: LatentShards, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload_shards(latent_shards([SMALL] * 3), HOME)
    cache = ShardCache(folder=tmp_path / "cache", max_gb=1)
    shards = ShardSet(HOME, cache)
    assert shards.read(shards.entries[0], "txt") == b"caption 0"
    real, left = ShardCache._has, [1]

    def slowly(path: Path, sha256: str, num_bytes: int) -> bool:
        found = real(path, sha256, num_bytes)
        if left.pop() if left else 0:
            path.unlink()
        return found

    monkeypatch.setattr(ShardCache, "_has", staticmethod(slowly))
    shards.close()
    assert shards.read(shards.entries[0], "txt") == b"caption 0"


def test_what_killed_downloads_left_in_the_cache_goes_and_one_under_way_stays(
    bucket: Store, latent_shards: LatentShards, tmp_path: Path
) -> None:
    upload_shards(latent_shards([SMALL] * 3), HOME)
    cache = ShardCache(folder=tmp_path / "cache", max_gb=1)
    cache.folder.mkdir()
    old, new = (cache.folder / f".{letter * 64}.{pid}.tmp.tar" for letter, pid in (("a", 7), ("b", 8)))
    old.write_bytes(b"half")
    new.write_bytes(b"half")
    os.utime(old, (1e9, 1e9))
    shards = ShardSet(HOME, cache)
    assert shards.read(shards.entries[0], "txt") == b"caption 0"
    assert new.exists() and not old.exists()


def test_a_shard_that_was_changed_in_the_store_is_not_kept(
    bucket: Store, latent_shards: LatentShards, tmp_path: Path
) -> None:
    upload_shards(latent_shards([SMALL] * 3), HOME)
    tar = next(key for key in bucket.names() if key.endswith(".tar"))
    bucket.put(tar, bytes(len(bucket.get(tar))))
    cache = ShardCache(folder=tmp_path / "cache", max_gb=1)
    shards = ShardSet(HOME, cache)
    with pytest.raises(DataError, match="recorded hash"):
        shards.read(shards.entries[0], "txt")
    assert list(cache.folder.iterdir()) == []


def test_a_shard_too_large_for_the_cache_is_read_by_ranges(
    bucket: Store, latent_shards: LatentShards, tmp_path: Path
) -> None:
    upload_shards(latent_shards([SMALL] * 3), HOME)
    shards = ShardSet(HOME, ShardCache(folder=tmp_path / "cache", max_gb=1e-9))
    assert shards.read(shards.entries[0], "txt") == b"caption 0" and not (tmp_path / "cache").exists()
    for value in ({"max_gb": 0}, {"folder": Path("s3://bucket/x")}):
        with pytest.raises(ValueError, match=r"above 0|local path"):
            ShardCache(**{"folder": tmp_path, "max_gb": 1, **value})


def test_a_second_upload_sends_nothing_and_a_new_version_takes_over_at_once(
    bucket: Store, latent_shards: LatentShards
) -> None:
    old, new = latent_shards([SMALL] * 7, name="old"), latent_shards(MIXED, name="new")
    assert upload_shards(old, HOME) == 5 and upload_shards(old, HOME) == 0
    reader = ShardSet(HOME)
    first = {key for key in bucket.names() if "shard-" in key}
    upload_shards(new, HOME)
    assert [entry.key for entry in ShardSet(HOME).entries] == [entry.key for entry in ShardSet(new).entries]
    assert reader.read(reader.entries[6], "txt") == b"caption 6"  # who was reading the old version goes on
    upload_shards(latent_shards([SMALL] * 3, name="third"), HOME)
    assert not first & set(bucket.names())
    upload_shards(new, HOME)  # back to a version that the last one replaced
    shards = ShardSet(HOME)
    assert shards.read(shards.entries[-1], "txt") == b"caption %d" % (len(MIXED) - 1)


def test_a_shard_that_two_versions_share_stays_as_long_as_the_later_one_may_be_read(
    bucket: Store, latent_shards: LatentShards
) -> None:
    for shapes, name in (([SMALL] * 7, "old"), ([SMALL] * 5, "fewer"), (MIXED, "other")):
        upload_shards(latent_shards(shapes, name=name), HOME)
        if name == "fewer":  # the first shard of the old
            reader = ShardSet(HOME)
    assert reader.read(reader.entries[0], "txt") == b"caption 0"


def test_two_uploads_at_once_leave_one_of_both_whole(
    bucket: Store, latent_shards: LatentShards, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two, three = (latent_shards([SMALL] * count, name=f"v{count}") for count in (3, 6, 9))
    upload_shards(one, HOME)
    real, begun = object_store.write, []

    def late(data: bytes, address: Address) -> None:
        if not begun:  # just before the first one's marker the others come and finish
            begun.append(True)
            upload_shards(three, HOME)
            upload_shards(one, HOME)
        real(data, address)

    monkeypatch.setattr(object_store, "write", late)
    upload_shards(two, HOME)
    shards = ShardSet(HOME)
    assert [shards.read(entry, "txt") for entry in shards.entries] == [b"caption %d" % n for n in range(6)]


def test_something_else_in_the_target_is_not_touched(bucket: Store, latent_shards: LatentShards) -> None:
    bucket.put("shards/shards.json", b'{"schema": "theirs"}')
    bucket.put("shards/photo.jpg", b"1")
    with pytest.raises(UserError, match="something other than"):
        upload_shards(latent_shards([SMALL] * 3), HOME)
    assert bucket.names() == ["shards/photo.jpg", "shards/shards.json"]


@pytest.mark.parametrize("requests", [1, 2, 3, 4, 6])
def test_an_upload_killed_at_any_request_leaves_the_old_version_and_goes_on(
    failing: Failing, latent_shards: LatentShards, requests: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = latent_shards([SMALL] * 5, name="old"), latent_shards(MIXED, name="new")
    upload_shards(old, HOME)
    for (
        thread
    ) in threading.enumerate():  # a reader of an earlier test may hold a lock of arrow's, which a child inherits
        if thread.name.startswith("batches"):
            thread.join()
    child = os.fork()
    if child == 0:
        left = [requests]

        def dying(path: Path, address: Address) -> None:
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            real(path, address)

        real = object_store.upload
        object_store.upload = dying
        object_store.write = lambda data, address: os.kill(os.getpid(), signal.SIGKILL)
        try:
            upload_shards(new, HOME)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert len(ShardSet(HOME)) == 5
    sent = upload_shards(new, HOME)
    assert len(ShardSet(HOME)) == len(MIXED) and 1 <= sent <= 7
    if requests == 6:
        assert sent == 1  # all but the marker had arrived


def test_an_upload_that_is_refused_half_way_leaves_the_old_version(
    failing: Failing, latent_shards: LatentShards
) -> None:
    upload_shards(latent_shards([SMALL] * 5, name="old"), HOME)
    failing.faults["PUT /shelf/shards/shard-000001"] = 403
    with pytest.raises(UserError, match="denies access"):
        upload_shards(latent_shards(MIXED, name="new"), HOME)
    failing.faults.clear()
    assert len(ShardSet(HOME)) == 5


def test_what_lies_in_the_store_reads_the_same_once_fetched_back(
    bucket: Store, latent_shards: LatentShards, tmp_path: Path
) -> None:
    folder = latent_shards(MIXED)
    upload_shards(folder, HOME)
    back = tmp_path / "back"
    for item in object_store.items(HOME):
        object_store.download(HOME / item.name, back / item.name)
    assert json.loads((back / "shards.json").read_text())["num_samples"] == len(MIXED)
    assert [entry.key for entry in ShardSet(back).entries] == [entry.key for entry in ShardSet(folder).entries]
    shutil.rmtree(back)
    assert stored_bucket.BUCKET in HOME
