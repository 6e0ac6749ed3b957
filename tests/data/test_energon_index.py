"""Tests that megatron-energon reads the same samples, parts and bytes from a folder of our shards."""

import gc
import json
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from nemo_vfm.core.errors import UserError
from nemo_vfm.data.shards.energon_index import write_energon_meta
from nemo_vfm.data.shards.shard_files import ShardSet
from nemo_vfm.data.shards.shard_folder import is_held_out
from nemo_vfm.data.sources.shard_data import ShardData
from tests.data.conftest import LatentShards

pytest.importorskip("megatron.energon")
SMALL = [2, 1, 2, 2]
Samples = list[dict[str, object]]
pytestmark = pytest.mark.filterwarnings("ignore:'pin_memory'")


def energon(path: Path, part: str = "train", workers: int = 0, rank: int = 0, num_ranks: int = 1) -> Samples:
    """One pass of energon over a part, as bytes."""
    from megatron.energon import (
        Cooker,
        DefaultTaskEncoder,
        WorkerConfig,
        get_loader,
        get_train_dataset,
        get_val_dataset,
        stateless,
    )

    class Raw(DefaultTaskEncoder):
        decoder = None
        cookers = (Cooker(stateless(lambda sample: dict(sample))),)

        def batch(self, samples: Samples) -> Samples:
            return samples

    config = WorkerConfig(rank=rank, world_size=num_ranks, num_workers=workers)
    encoder = Raw()
    if part == "train":
        data = get_train_dataset(path, batch_size=1, worker_config=config, task_encoder=encoder, repeat=False,
                                 shuffle_buffer_size=None, max_samples_per_sequence=None)  # fmt: skip
    else:
        data = get_val_dataset(path, batch_size=1, worker_config=config, task_encoder=encoder, split_part=part)
    return [sample for batch in get_loader(data) for sample in batch]


def keys(samples: Samples) -> list[str]:
    return sorted(str(sample["__key__"]) for sample in samples)


@pytest.fixture(autouse=True)
def _no_collections(monkeypatch: pytest.MonkeyPatch) -> None:
    """energon asks for three in each pass, 1 s each where much else was imported, and undoes what froze that."""
    for name in ("collect", "freeze", "unfreeze"):
        monkeypatch.setattr(gc, name, lambda *_: 0)


@pytest.fixture
def folder(latent_shards: LatentShards) -> Path:
    return latent_shards([SMALL] * 23)


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_energon_gives_exactly_our_samples_with_their_bytes_and_ranks_share_them_out(folder: Path, workers: int):
    shards = ShardSet(folder)
    assert write_energon_meta(folder) == {"train": 23}
    found = {str(sample["__key__"]): sample for sample in energon(folder, workers=workers)}
    assert found.keys() == {entry.key for entry in shards.entries}
    for entry in shards.entries:
        members = {name: value for name, value in found[entry.key].items() if not name.startswith("__")}
        assert members == {name: shards.read(entry, name) for name in entry.members}
    parts = [keys(energon(folder, workers=workers, rank=rank, num_ranks=2)) for rank in (0, 1)]
    assert sorted(parts[0] + parts[1]) == sorted(found) and min(map(len, parts)) >= 10


def test_train_and_val_are_the_ones_that_our_own_loader_has(folder: Path):
    data = ShardData(shards=folder, batch_size=1, val_fraction=0.3)
    held_out = {entry.key for entry in ShardSet(folder).entries if is_held_out(entry, 0.3)}
    ours = sorted(key for batch in data.val_dataloader() for key in batch.keys)
    assert ours == sorted(held_out) and 2 <= len(held_out) <= 15
    assert write_energon_meta(folder, {"val": held_out}) == {"train": 23 - len(held_out), "val": len(held_out)}
    assert keys(energon(folder / "energon.yaml", "val")) == ours
    for path in (folder, folder / "energon.yaml"):
        assert set(keys(energon(path))) == {entry.key for entry in ShardSet(folder).entries} - held_out


def test_a_tar_of_held_out_samples_alone_is_the_val_part_of_the_plain_folder_too(folder: Path):
    second = [entry.key for entry in ShardSet(folder).entries if entry.shard == "shard-000001.tar"]
    write_energon_meta(folder, {"val": second})
    assert keys(energon(folder, "val")) == keys(energon(folder / "energon.yaml", "val")) == sorted(second)
    assert not set(keys(energon(folder))) & set(second)


def test_every_offset_is_the_one_that_energon_finds_by_itself(folder: Path, tmp_path: Path):
    other = tmp_path / "prepared"
    shutil.copytree(folder, other)
    write_energon_meta(folder)
    command("prepare", str(other), "--non-interactive", "--split-parts", "train:shard-{000000..000004}.tar",
            "--sample-type", "CrudeWebdataset", "--num-workers", "1")  # fmt: skip
    for name in [f"shard-{number:06d}.tar.idx" for number in range(5)]:
        assert (folder / name).read_bytes() == (other / name).read_bytes()
    assert tables(folder) == tables(other) and len(tables(folder)["samples"]) == 23
    counts = [json.loads((path / ".nv-meta/.info.json").read_text()) for path in (folder, other)]
    assert counts[0] == counts[1]


def command(*words: str) -> str:
    """What energon's own command line prints."""
    from click.testing import CliRunner
    from megatron.energon.cli.main import main

    done = CliRunner().invoke(main, list(words), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def tables(folder: Path) -> dict[str, list[tuple[object, ...]]]:
    database = sqlite3.connect(folder / ".nv-meta/index.sqlite")
    names = [row[0] for row in database.execute("select name from sqlite_master where type='table'")]
    found = {name: sorted(database.execute(f"select * from {name}")) for name in sorted(names)}
    found["indices"] = sorted(database.execute("select name, tbl_name from sqlite_master where type='index'"))
    database.close()
    return found


def test_energon_info_describes_the_folder(folder: Path):
    write_energon_meta(folder)
    assert "23 samples" in command("info", str(folder), "--dataset-config", "captioning.yaml")


def test_equal_shards_give_equal_bytes_and_our_loader_sees_none_of_them(
    latent_shards: LatentShards, content: Callable[[Path], dict[str, bytes]]
):
    one, two = latent_shards([SMALL] * 7, name="one"), latent_shards([SMALL] * 7, name="two")
    before = ShardSet(one).entries
    for folder in (one, two, two):
        write_energon_meta(folder, {"val": [before[0].key]})
    assert content(one) == content(two)
    assert ShardSet(one).entries == before
    (one / "shards.json").unlink()  # as anyone's tars, too
    assert [entry.key for entry in ShardSet(one).entries] == [entry.key for entry in before]


@pytest.fixture
def content() -> Callable[[Path], dict[str, bytes]]:
    return lambda folder: {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_what_cannot_be_described_is_refused_before_anything_is_written(folder: Path):
    key = ShardSet(folder).entries[0].key
    for splits in ({"val": ["nobody"]}, {"val": [key], "test": [key]}, {"../val": [key]}, {"split": [key]}):
        with pytest.raises(UserError):
            write_energon_meta(folder, splits)
    (folder / "shards.json").unlink()
    with pytest.raises(UserError, match="energon prepare"):
        write_energon_meta(folder)
    assert not list(folder.glob("*.idx")) and not (folder / ".nv-meta").exists()
