"""Tests that shards are plain tars with an index whose errors are detected."""

import json
import os
import pickle
import threading
from pathlib import Path

import pytest
import webdataset
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.storage.files import sha256_file
from nemo_vfm.data.shards.energon_index import write_energon_meta
from nemo_vfm.data.shards.shard_files import ShardSet, ShardWriter, verify

SAMPLES = {
    f"clip-{n}": {"txt": f"caption {n}".encode(), "mp4": bytes([n]) * (700 * n), "json": b"{}"} for n in range(7)
}


def write(folder: Path, **limits: int) -> Path:
    with ShardWriter(folder, **({"samples_per_shard": 3} | limits)) as writer:
        for number, (key, members) in enumerate(SAMPLES.items()):
            writer.write(key, members, {"number": number})
    return folder


def test_what_was_written_is_read(tmp_path: Path) -> None:
    shards = ShardSet(write(tmp_path))
    assert [entry.key for entry in shards.entries] == list(SAMPLES)
    assert [entry.index["number"] for entry in shards.entries] == list(range(7))
    for entry in shards.entries:
        assert {name: shards.read(entry, name) for name in entry.members} == SAMPLES[entry.key]
    assert verify(tmp_path) == []


def test_webdataset_itself_reads_our_shards(tmp_path: Path) -> None:
    urls = [str(path) for path in sorted(write(tmp_path).glob("*.tar"))]
    found = {s["__key__"]: s for s in webdataset.WebDataset(urls, shardshuffle=False)}
    assert {key: {name: sample[name] for name in SAMPLES[key]} for key, sample in found.items()} == SAMPLES


def test_equal_samples_give_equal_files(tmp_path: Path) -> None:
    one, two = write(tmp_path / "one"), write(tmp_path / "two")
    names = sorted(path.name for path in one.iterdir())
    assert names == sorted(path.name for path in two.iterdir())
    assert all((one / name).read_bytes() == (two / name).read_bytes() for name in names)


def test_a_shard_is_closed_before_it_grows_too_large(tmp_path: Path) -> None:
    shards = ShardSet(write(tmp_path, samples_per_shard=100, max_shard_bytes=9000))
    assert len({entry.shard for entry in shards.entries}) > 1
    assert len(shards) == 7


def test_a_folder_is_finished_only_by_its_marker_and_a_failed_writer_leaves_none(tmp_path: Path) -> None:
    write(tmp_path)
    with pytest.raises(RuntimeError), ShardWriter(tmp_path) as writer:
        assert not (tmp_path / "shards.json").exists()
        writer.write("a", {"txt": b"x"}, {})
        raise RuntimeError("killed")
    assert list(tmp_path.iterdir()) == []


def test_fewer_shards_than_before_leave_no_old_ones(tmp_path: Path) -> None:
    write(tmp_path, samples_per_shard=1)
    write(tmp_path, samples_per_shard=7)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["shard-000000.json", "shard-000000.tar", "shards.json"]


def test_what_energon_was_told_of_older_shards_goes_with_them(tmp_path: Path) -> None:
    write_energon_meta(write(tmp_path, samples_per_shard=1))
    (tmp_path / "notes.txt").write_text("mine")
    write(tmp_path, samples_per_shard=7)
    there = ["notes.txt", "shard-000000.json", "shard-000000.tar", "shards.json"]
    assert sorted(path.name for path in tmp_path.iterdir()) == there


@pytest.mark.parametrize(
    ("key", "members"),
    [("../x", {"txt": b""}), ("a.b", {"txt": b""}), ("", {"txt": b""}), ("a" * 91, {"txt": b""}), ("ok", {}),
     ("ok", {"../txt": b""}), ("ok", {"pkl": b""}), ("ok", {"weights.pth": b""}), ("ok", {"t" * 99: b""})],
)  # fmt: skip
def test_names_that_a_tar_should_not_hold_are_refused(key: str, members: dict[str, bytes], tmp_path: Path) -> None:
    with pytest.raises(UserError), ShardWriter(tmp_path) as writer:
        writer.write(key, members, {})


def test_a_key_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="twice"), ShardWriter(tmp_path, samples_per_shard=1) as writer:
        for _ in range(2):
            writer.write("a", {"txt": b"x"}, {})


def damage_size(folder: Path) -> None:
    with (folder / "shard-000001.tar").open("ab") as file:
        file.write(b"more")


def damage_missing(folder: Path) -> None:
    (folder / "shard-000001.tar").unlink()


def damage_depth(folder: Path) -> None:
    (folder / "shards.json").write_text("[" * 100_000)


@pytest.mark.parametrize("damage", [damage_size, damage_missing, damage_depth])
def test_an_index_that_does_not_fit_is_noticed_at_opening(damage, tmp_path: Path) -> None:
    damage(write(tmp_path))
    with pytest.raises(DataError):
        ShardSet(tmp_path)


@pytest.mark.parametrize(("name", "old", "new"), [
    ("shard-000001.json", "clip-3", "clip-9"), ("shards.json", "shards/1", "shards/9"),
    ("shards.json", "shard-000001.tar", "../shard-000001.tar"),
])  # fmt: skip
def test_a_word_that_was_changed_in_an_index_is_noticed_at_opening(name: str, old: str, new: str, tmp_path: Path):
    path = write(tmp_path) / name
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(DataError):
        ShardSet(tmp_path)


def test_other_bytes_of_the_same_length_are_found_by_verify(tmp_path: Path) -> None:
    path = write(tmp_path) / "shard-000000.tar"
    data = bytearray(path.read_bytes())
    data[600] ^= 1
    path.write_bytes(data)
    assert len(verify(tmp_path)) == 1 and "shard-000000.tar" in verify(tmp_path)[0]


@pytest.mark.parametrize(
    "forged", [{"members": {"txt": [0, 10**12]}}, {"key": "../../x"}, {"key": "/x"}, {"key": "a.b"}, {"key": ""}]
)
def test_an_index_cannot_point_outside_its_tar_nor_its_key_outside_a_folder(forged: dict, tmp_path: Path) -> None:
    write(tmp_path)
    index, marker = tmp_path / "shard-000000.json", tmp_path / "shards.json"
    content = json.loads(index.read_text())
    content["samples"][0] |= forged
    old = sha256_file(index)
    index.write_text(json.dumps(content))
    marker.write_text(marker.read_text().replace(old, sha256_file(index)))
    with pytest.raises(DataError, match="damaged sample"):
        ShardSet(tmp_path)


def test_a_tar_replaced_while_open_or_shortened_is_a_data_error(tmp_path: Path) -> None:
    shards = ShardSet(write(tmp_path))
    os.truncate(tmp_path / "shard-000002.tar", 600)
    with pytest.raises(DataError, match="changed during training"):
        shards.read(shards.entries[-1], "mp4")
    with pytest.raises(DataError, match="has no wav"):
        shards.read(shards.entries[0], "wav")


def test_threads_and_processes_share_a_shard_set(tmp_path: Path) -> None:
    shards = pickle.loads(pickle.dumps(ShardSet(write(tmp_path, samples_per_shard=1))))
    wrong: list[str] = []

    def read() -> None:
        for entry in list(shards.entries) * 30:
            if shards.read(entry, "mp4") != SAMPLES[entry.key]["mp4"]:
                wrong.append(entry.key)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_missing_or_empty_folder_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no folder"):
        ShardSet(tmp_path / "nowhere")
    with pytest.raises(UserError, match="no shards"):
        ShardSet(tmp_path)


def index_fuzzed(folder: Path, position: int, value: int) -> None:
    """One byte of an index changed, its hash made to fit: opening gives a DataError or sound entries."""
    write(folder)
    index, marker = folder / "shard-000000.json", folder / "shards.json"
    old, data = sha256_file(index), bytearray(index.read_bytes())
    data[position % len(data)] = value
    index.write_bytes(data)
    marker.write_text(marker.read_text().replace(old, sha256_file(index)))
    try:
        shards = ShardSet(folder)
    except DataError:
        return
    for entry in shards.entries:
        for name, (_, size) in entry.members.items():
            assert len(shards.read(entry, name)) == size


@settings(max_examples=40)
@given(st.integers(0, 5000), st.integers(0, 255))
def test_a_damaged_index_never_leads_astray(tmp_path_factory, position: int, value: int) -> None:
    index_fuzzed(tmp_path_factory.mktemp("fuzz"), position, value)
