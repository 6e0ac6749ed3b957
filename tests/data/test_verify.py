"""Tests that verification finds shards whose bytes changed under an old size and time."""

import json
import os
from itertools import islice
from pathlib import Path

import pytest

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.storage.files import sha256_file
from nemo_vfm.core.storage.uri import Address
from nemo_vfm.data.batching.bucket import Bucket, Buckets
from nemo_vfm.data.batching.faults import ShardChanged
from nemo_vfm.data.shards.shard_cache import ShardCache
from nemo_vfm.data.shards.shard_files import ShardSet, ShardWriter
from nemo_vfm.data.shards.shard_upload import upload_shards
from nemo_vfm.data.sources.shard_data import ShardData
from nemo_vfm.parallel.ranks.gather import Gather
from tests.data.conftest import LatentShards, mp4
from tests.data.test_shard_data import MIXED, SMALL, contents, take
from tests.support.object_store import BUCKET
from tests.support.object_store import Bucket as Store

LATENTS, TEXT = "latents.safetensors", "text.safetensors"
ONE = Buckets(buckets={"only": Bucket(32, 32, 5, 8)})


def damage(folder: Path, key: str, extension: str) -> None:
    """One bit of a member, so that nothing but a checksum tells; size and time of the tar stay what they were."""
    (entry,) = (entry for entry in ShardSet(folder).entries if entry.key == key)
    offset, size = entry.members[extension]
    tar = folder / entry.shard
    stat, data = tar.stat(), bytearray(tar.read_bytes())
    data[offset + size - 4] ^= 1
    tar.write_bytes(data)
    os.utime(tar, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert tar.stat().st_size == stat.st_size and tar.stat().st_mtime_ns == stat.st_mtime_ns


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_shard_rewritten_meanwhile_with_its_old_size_and_time_stops_the_run(
    num_workers: int, latent_shards: LatentShards
) -> None:
    folder = latent_shards([SMALL] * 8)
    data = ShardData(shards=folder, batch_size=4, num_workers=num_workers, verify=True)
    data.start(seed=0, first_batch=0)
    given = iter(data.train_dataloader())
    next(given)
    damage(folder, f"{6:032x}", LATENTS)
    with pytest.raises(ShardChanged, match=r"shard-000001\.tar changed during"):
        list(islice(given, 40))


def test_without_being_asked_nobody_notices(latent_shards: LatentShards) -> None:
    folder = latent_shards([SMALL] * 8)
    before = contents(take(ShardData(shards=folder, batch_size=4), 2))
    damage(folder, f"{6:032x}", LATENTS)
    data = ShardData(shards=folder, batch_size=4)
    assert contents(take(data, 2)) != before and not data.faults.by_sample


@pytest.mark.parametrize("extension", [LATENTS, TEXT])
def test_a_sample_that_was_damaged_before_the_start_is_named_and_weighs_nothing(
    extension: str, latent_shards: LatentShards
) -> None:
    folder, key = latent_shards([SMALL] * 8), f"{6:032x}"
    damage(folder, key, extension)
    data = ShardData(shards=folder, batch_size=4, shuffle=False, verify=True)
    batches = take(data, 2)
    assert [weight for batch in batches for weight in batch.weight_B.tolist()] == [1] * 6 + [0, 1]
    assert data.faults.by_sample == {key: 1}
    with pytest.raises(DataError, match=rf"{key}\.{extension} .*does not match its checksum"):
        shards = ShardSet(folder, verify=True)
        shards.read(shards.entries[6], extension)


def test_a_video_is_verified_before_it_is_decoded(tmp_path: Path) -> None:
    with ShardWriter(tmp_path) as writer:
        for number in range(2):
            facts = {"caption": "", "fps": 8.0, "width": 80, "height": 64, "num_frames": 12}
            writer.write(f"f{number}", {"mp4": mp4(seed=number)}, facts)
    damage(tmp_path, "f1", "mp4")
    for verify, bad in ((True, {"f1": 1}), (False, {})):
        data = ShardData(shards=tmp_path, batch_size=1, buckets=ONE, shuffle=False, verify=verify)
        take(data, 2)
        assert data.faults.by_sample == bad


def test_batches_of_whole_shards_are_the_same_verified_or_not(latent_shards: LatentShards) -> None:
    folder = latent_shards(MIXED)
    plain, verified = (contents(take(ShardData(shards=folder, batch_size=3, verify=v), 8)) for v in (False, True))
    assert plain == verified


def test_several_folders_are_all_verified(latent_shards: LatentShards, tmp_path: Path) -> None:
    one = latent_shards([SMALL] * 3, name="one")
    with ShardWriter(tmp_path / "two") as writer:
        shards = ShardSet(one)
        members = dict(zip((LATENTS, TEXT), shards.read_all(shards.entries[0], (LATENTS, TEXT)), strict=True))
        writer.write("other", members, shards.entries[0].index)
    damage(tmp_path / "two", "other", LATENTS)
    data = ShardData(shards=[one, tmp_path / "two"], batch_size=4, verify=True)
    take(data, 1)
    assert data.faults.by_sample == {"other": 1}


def test_what_ranks_gathered_is_verified_once_it_is_whole(latent_shards: LatentShards) -> None:
    folder = latent_shards([SMALL] * 8)
    damage(folder, f"{6:032x}", TEXT)
    data = ShardData(shards=folder, batch_size=4, verify=True)
    data.share_with(Gather())
    data.start(seed=0, first_batch=0)
    list(islice(data.train_dataloader(), 2))
    assert data.faults.by_sample == {f"{6:032x}": 1} and data.traffic.alone == 0


@pytest.mark.parametrize("cached", [False, True])
def test_shards_in_a_store_are_verified_as_they_are_read(
    cached: bool, bucket: Store, latent_shards: LatentShards, tmp_path: Path
) -> None:
    folder, home = latent_shards([SMALL] * 8), Address(f"s3://{BUCKET}/shards")
    damage(folder, f"{2:032x}", LATENTS)
    marker = json.loads((folder / "shards.json").read_text())
    marker["shards"][0]["sha256"] = sha256_file(folder / "shard-000000.tar")  # else the cache would refuse it whole
    (folder / "shards.json").write_text(json.dumps(marker))
    upload_shards(folder, home)
    cache = ShardCache(folder=tmp_path / "cache", max_gb=1) if cached else None
    data = ShardData(shards=home, batch_size=4, cache=cache, verify=True)
    take(data, 2)
    assert data.faults.by_sample == {f"{2:032x}": 1}


def test_tars_without_checksums_are_refused_at_the_start(latent_shards: LatentShards) -> None:
    folder = latent_shards([SMALL] * 3)
    (folder / "shards.json").unlink()
    assert len(take(ShardData(shards=folder, batch_size=3), 1)) == 1
    with pytest.raises(UserError, match=r"no checksums for 3 samples.*verify=false"):
        take(ShardData(shards=folder, batch_size=3, verify=True), 1)


@pytest.mark.parametrize("forged", [[1], [1] * 5, [1, 2, 3, -1], [1, 2, 3, 2**32], [1, 2, 3, "4"], [1, 2, 3, None], 7])
def test_checksums_that_cannot_be_some_are_refused_at_the_start(forged: object, latent_shards: LatentShards) -> None:
    folder = latent_shards([SMALL] * 2)
    index, marker = folder / "shard-000000.json", folder / "shards.json"
    content, old = json.loads(index.read_text()), sha256_file(index)
    content["samples"][0]["crc32"] = forged
    index.write_text(json.dumps(content))
    marker.write_text(marker.read_text().replace(old, sha256_file(index)))
    with pytest.raises(DataError, match="damaged sample"):
        ShardSet(folder)
