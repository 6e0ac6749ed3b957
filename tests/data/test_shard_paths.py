"""Tests shards named by braces and lists: the same samples anywhere, and missing shards are reported."""

from pathlib import Path

import pytest

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.storage.uri import Address
from nemo_vfm.data.shards.shard_files import ShardSet, ShardWriter
from nemo_vfm.data.shards.shard_paths import expand_braces, folders_of, named_shards
from nemo_vfm.data.shards.shard_upload import upload_shards
from nemo_vfm.data.sources.shard_data import ShardData
from tests.data.conftest import LatentShards
from tests.data.test_shard_data import SMALL, contents, take
from tests.support.object_store import BUCKET
from tests.support.object_store import Bucket as Store


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("plain", ["plain"]), ("a-{08..11}.tar", ["a-08.tar", "a-09.tar", "a-10.tar", "a-11.tar"]),
        ("{a,b}/{1..2}", ["a/1", "a/2", "b/1", "b/2"]), ("x{,y}", ["x", "xy"]), ("{7..7}", ["7"]),
    ],
)  # fmt: skip
def test_braces_stand_for_names(text: str, names: list[str]) -> None:
    assert expand_braces(text) == names


@pytest.mark.parametrize(
    "text", ["{3..1}", "{a..b}", "{}", "{1", "1}", "{{1,2}}", "{0..999999999}", "{1..1000}" * 3, "{-1..2}", "{1..2..1}"]
)
def test_braces_that_mean_nothing_or_too_much_are_refused_at_once(text: str) -> None:
    with pytest.raises(ValueError, match=r"names|range|close"):
        expand_braces(text)


def test_single_tars_and_folders_are_told_apart() -> None:
    found = folders_of([Address("s3://bucket/a/x-{0..1}.tar"), Path("here"), Address("s3://bucket/{b,c}")])
    assert found == {
        Address("s3://bucket/a"): {"x-0.tar", "x-1.tar"}, Path("here"): None, Address("s3://bucket/b"): None,
        Address("s3://bucket/c"): None,
    }  # fmt: skip


def test_named_shards_are_a_part_of_the_folder(latent_shards: LatentShards) -> None:
    folder = latent_shards([SMALL] * 20)
    some = named_shards([folder / "shard-{000001..000002}.tar"], None)
    assert [int(entry.key, 16) for entry in some.entries] == list(range(5, 15))
    with pytest.raises(UserError, match=r"has no shard-000004\.tar; 6 of 9 named are missing"):
        named_shards([folder / "shard-{000001..000009}.tar"], None)
    (folder / "shards.json").unlink()
    assert named_shards([folder / "shard-{000001..000002}.tar"], None).entries[0].key == some.entries[0].key
    with pytest.raises(UserError, match="6 of the 9 named shards are missing"):
        named_shards([folder / "shard-{000001..000009}.tar"], None)


def renumbered(make: LatentShards, first: int, name: str) -> Path:
    """Five samples whose keys begin at `first`."""
    whole = make([SMALL] * (first + 5), name=f"all-{name}")
    source, folder = ShardSet(whole), whole.with_name(name)
    with ShardWriter(folder) as writer:
        for entry in source.entries[first:]:
            writer.write(entry.key, {n: source.read(entry, n) for n in entry.members}, dict(entry.index))
    return folder


@pytest.mark.parametrize("num_workers", [0, 1])
def test_several_folders_are_one_set_here_and_in_a_store(
    bucket: Store, latent_shards: LatentShards, num_workers: int
) -> None:
    one, two = renumbered(latent_shards, 0, "one"), renumbered(latent_shards, 5, "two")
    for name, folder in (("one", one), ("two", two)):
        upload_shards(folder, Address(f"s3://{BUCKET}/{name}"))
    here = take(ShardData(shards=[one, two], batch_size=2), 5)
    assert {int(key, 16) for batch in here for key in batch.keys} == set(range(10))
    there = ShardData(shards=Address(f"s3://{BUCKET}/{{one,two}}"), batch_size=2, num_workers=num_workers)
    assert contents(take(there, 5)) == contents(here)
    mixed = ShardData(shards=[one, Address(f"s3://{BUCKET}/two")], batch_size=2)
    assert contents(take(mixed, 5)) == contents(here)
    for batch in here:
        assert [float(row.flatten()[0]) for row in batch.latents_BCTHW] == [float(int(key, 16)) for key in batch.keys]


def test_a_sample_in_two_folders_is_told(latent_shards: LatentShards) -> None:
    one, two = latent_shards([SMALL] * 3, name="one"), latent_shards([SMALL] * 3, name="two")
    with pytest.raises(DataError, match="is in both"):
        named_shards([one, two], None)
