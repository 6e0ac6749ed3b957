"""Tests that samples read straight into a batch are those that are read and copied, and that damage is still seen."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save

from nemo_vfm.core.types.batch import Batch
from nemo_vfm.data.batching.faults import ShardChanged
from nemo_vfm.data.shards.shard_files import ShardSet, ShardWriter
from nemo_vfm.data.shards.shard_folder import LocalShard
from nemo_vfm.data.sources.shard_data import ShardData
from tests.data.conftest import LatentShards
from tests.data.test_shard_data import LONG, MIXED, SMALL, contents, take


def copied(data: ShardData) -> ShardData:
    """The same data, with no sample read in place."""
    data._open().samples.locate = lambda *_: None
    return data


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of every read in place."""
    made: list[int] = []
    inner = LocalShard.read_into

    def read_into(shard: LocalShard, offset: int, buffers: list[bytearray]) -> int:
        made.append(inner(shard, offset, buffers))
        return made[-1]

    monkeypatch.setattr(LocalShard, "read_into", read_into)
    return made


def test_batches_are_those_of_reading_and_copying(latent_shards: LatentShards, calls: list[int]) -> None:
    folders = [latent_shards(MIXED)]
    second = latent_shards(MIXED, name="more")
    renamed(second)
    for shards in (folders, [*folders, second]):
        for verify in (False, True):
            made = len(calls)
            direct = contents(take(ShardData(shards=shards, batch_size=3, verify=verify), 12))
            assert len(calls) - made > 12, "in place, from the second batch of a shape on"
            made = len(calls)
            assert contents(take(copied(ShardData(shards=shards, batch_size=3, verify=verify)), 12)) == direct
            assert len(calls) == made


def renamed(folder: Path) -> None:
    """Other keys, so that the folder may stand beside one of the same samples."""
    source = ShardSet(folder)
    held = [(e, {n: source.read(e, n) for n in e.members}) for e in source.entries]
    with ShardWriter(folder, samples_per_shard=5) as writer:
        for entry, members in held:
            writer.write(f"f{entry.key[1:]}", members, dict(entry.index))


def shards_of(folder: Path, latents: dict[str, bytes], **changed: object) -> Path:
    with ShardWriter(folder) as writer:
        for key, data in latents.items():
            writer.write(
                key, {"latents.safetensors": data}, {"fps": 8.0, "bucket": "b", "latent_shape": SMALL} | changed
            )
    return folder


def test_a_header_of_the_same_length_and_another_shape_is_a_bad_sample(tmp_path: Path, calls: list[int]) -> None:
    fine = save({"latents": torch.ones(SMALL)})
    turned = save({"latents": torch.ones(list(reversed(SMALL)))})
    assert len(fine) == len(turned) and fine != turned
    folder = shards_of(tmp_path, {"a": fine, "b": fine, "c": fine, "d": turned})
    data = ShardData(shards=folder, batch_size=2, shuffle=False)
    batches = take(data, 2)
    assert len(calls) == 2 and [batch.weight_B.tolist() for batch in batches] == [[1, 1], [1, 0]]
    assert data.faults.by_sample == {"d": 1}


def test_shapes_that_only_the_headers_tell_apart_keep_their_own(tmp_path: Path) -> None:
    """Landscape and portrait have headers of one length, members of one size, and no index that says which."""
    wide = {f"w{n}": save({"latents": torch.full([2, 1, 2, 3], float(n))}) for n in range(6)}
    tall = {f"t{n}": save({"latents": torch.full([2, 1, 3, 2], float(n))}) for n in range(6)}
    folder = shards_of(tmp_path, wide | tall, latent_shape=None)
    direct = take(ShardData(shards=folder, batch_size=2), 12)
    expected = take(copied(ShardData(shards=folder, batch_size=2)), 12)
    assert contents(direct) == contents(expected)
    assert {batch.latents_BCTHW.shape[2:] for batch in direct} == {(1, 2, 3), (1, 3, 2)}
    assert all(batch.weight_B.all() for batch in direct)


def with_a_gap(latents: torch.Tensor) -> bytes:
    """A file whose header leaves 8 bytes between its tensors, which the library would not write."""
    size = latents.nbytes
    fields = {"latents": {"dtype": "F32", "shape": list(latents.shape), "data_offsets": [8, 8 + size]}}
    header = json.dumps(fields).encode()
    return len(header).to_bytes(8, "little") + header + bytes(8) + latents.numpy().tobytes()


def with_more(latents: torch.Tensor) -> bytes:
    return save({"latents": latents, "more": torch.zeros(3)})


@pytest.mark.parametrize("make", [with_a_gap, with_more])
def test_files_laid_out_otherwise_are_copied(make, tmp_path: Path, calls: list[int]) -> None:
    folder = shards_of(tmp_path, {str(n): make(torch.full(SMALL, float(n))) for n in range(6)})
    data = ShardData(shards=folder, batch_size=2, shuffle=False)
    found = torch.cat([batch.latents_BCTHW for batch in take(data, 3)])
    assert found[:, 0, 0, 0, 0].tolist() == [0, 1, 2, 3, 4, 5] and calls == []


def started(latent_shards: LatentShards) -> tuple[Path, Iterator[Batch], ShardData]:
    folder = latent_shards([SMALL] * 10)
    data = ShardData(shards=folder, batch_size=2, shuffle=False)
    data.start(seed=0, first_batch=0)
    batches = iter(data.train_dataloader())
    next(batches)
    return folder, batches, data


def test_a_tar_written_to_meanwhile_stops_the_run(latent_shards: LatentShards, calls: list[int]) -> None:
    folder, batches, _ = started(latent_shards)
    next(batches)
    assert len(calls) == 2
    with (folder / "shard-000001.tar").open("ab") as tar:
        tar.write(bytes(512))
    with pytest.raises(ShardChanged, match="changed during training"):
        next(batches)


def test_a_disk_that_fails_is_a_bad_sample(
    latent_shards: LatentShards, calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, batches, data = started(latent_shards)
    inner = os.preadv

    def preadv(descriptor: int, buffers: list[bytearray], offset: int) -> int:
        if len(calls) == 0:
            calls.append(0)
            raise OSError(5, "Input/output error")
        return inner(descriptor, buffers, offset)

    monkeypatch.setattr(os, "preadv", preadv)
    batch = next(batches)
    assert batch.weight_B.tolist() == [0, 1] and not batch.latents_BCTHW[0].any() and batch.latents_BCTHW[1].any()
    assert data.faults.by_sample == {f"{2:032x}": 1}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("place", [0, 1, -1])
def test_one_nan_anywhere_in_a_batch_is_found_in_its_sample(dtype: torch.dtype, place: int, tmp_path: Path) -> None:
    shape = [4, 2, 256, 256]  # 2 MB in float32: looked at in pieces
    bad = torch.ones(shape, dtype=dtype)
    bad.view(-1)[place] = float("nan")
    latents = {name: save({"latents": torch.ones(shape, dtype=dtype)}) for name in "abde"} | {
        "c": save({"latents": bad})
    }
    data = ShardData(shards=shards_of(tmp_path, latents, latent_shape=shape), batch_size=5, shuffle=False)
    first, second = take(data, 2)
    for batch in (first, second):
        assert {key for key, weight in zip(batch.keys, batch.weight_B.tolist(), strict=True) if not weight} == {"c"}
        assert torch.isfinite(batch.latents_BCTHW).all()


def test_clips_of_two_lengths_are_all_read_in_place(latent_shards: LatentShards, calls: list[int]) -> None:
    take(ShardData(shards=latent_shards([SMALL, LONG] * 12), batch_size=4), 12)
    assert len(calls) == (12 - 2) * 4, "all but the first batch of each shape"
