"""Tests the loader against shards made to write, run, fill memory or lie, and workers that die or hang."""

import ast
import gc
import gzip
import io
import json
import os
import pickle
import resource
import signal
import struct
import tarfile
import threading
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from safetensors.torch import save

import nemo_vfm.data
from nemo_vfm.core.errors import DataError, NemoVfmError, UserError
from nemo_vfm.core.types.batch import Batch
from nemo_vfm.data.batching.bucket import Bucket, Buckets
from nemo_vfm.data.batching.faults import ShardChanged
from nemo_vfm.data.loader.batch_loader import Batches
from nemo_vfm.data.loader.listed_data import ListedData
from nemo_vfm.data.shards.shard_cache import ShardCache
from nemo_vfm.data.shards.shard_files import ShardSet, ShardWriter, verify
from nemo_vfm.data.shards.tar_members import index_tar
from nemo_vfm.data.sources.shard_data import ShardData
from nemo_vfm.data.sources.streamed import StreamedTars
from nemo_vfm.data.sources.video_folder import VideoFolder
from nemo_vfm.data.video.fit_to_bucket import decode_image
from tests.data.conftest import mp4

SHAPE = (2, 1, 2, 2)
ONE = Buckets(buckets={"only": Bucket(32, 32, 5, 8), "still": Bucket(32, 32, 1)})


def latents(folder: Path, count: int = 12, **bad: bytes) -> Path:
    """Latent shards of three samples each; `bad` replaces the latents of a sample."""
    with ShardWriter(folder, samples_per_shard=3) as writer:
        for number in range(count):
            data = bad.get(f"s{number}", save({"latents": torch.full(SHAPE, float(number))}))
            text = save({"text": torch.zeros(1, 4), "mask": torch.tensor([True])})
            facts = {"caption": "", "fps": 8.0, "bucket": "b", "latent_shape": list(SHAPE)}
            writer.write(f"s{number}", {"latents.safetensors": data, "text.safetensors": text}, facts)
    return folder


def films(folder: Path, count: int = 4) -> Path:
    with ShardWriter(folder) as writer:
        for number in range(count):
            facts = {"caption": "", "fps": 8.0, "width": 80, "height": 64, "num_frames": 12}
            writer.write(f"f{number}", {"mp4": mp4(seed=number)}, facts)
    return folder


def take(data: ListedData | StreamedTars, count: int) -> list[Batch]:
    data.start(seed=0, first_batch=0)
    return list(islice(data.train_dataloader(), count))


def foreign(path: Path, *members: tuple[str, bytes]) -> Path:
    with tarfile.open(path, "w") as out:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            out.addfile(info, io.BytesIO(data))
    return path


class Canary:
    """Would leave a file if anyone unpickled it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return Path.touch, (self.path,)


WORKERS: set[int] = set()  # all that were killed here: other tests of this machine have memory of their own


def held(before: set[str] | None = None) -> set[str]:
    """Shared memory, open files and children of this process that a loader may leave behind."""
    own = psutil.Process()
    found = {f"shm {path.name}" for pid in WORKERS for path in Path("/dev/shm").glob(f"torch_{pid}_*")}
    found |= {f"file {file.path}" for file in own.open_files() if file.path.endswith((".tar", ".mp4"))}
    found |= {f"child {child.pid}" for child in own.children(recursive=True)}
    return found - (before or set())


def settled(before: set[str]) -> set[str]:
    """What is left once processes had a moment to end."""
    for _ in range(100):
        left = held(before)
        if not left:
            break
        time.sleep(0.05)
    return left


# 24 and 25: what a tar may hold


def test_no_member_of_any_kind_is_ever_extracted_to_the_disk() -> None:
    """By what the code says: nothing of ours extracts, and webdataset's reader asks for bytes alone."""
    for file in sorted(Path(nemo_vfm.data.__path__[0]).rglob("*.py")):
        called = {node.attr for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Attribute)}
        assert not called & {"extract", "extractall", "extractfile", "unpack_archive", "makefile"}, file


@pytest.mark.parametrize("suffix", ["pyd", "pkl", "pickle", "pth", "pt", "ckpt", "npy", "npz", "PKL", "latents.pkl"])
@pytest.mark.parametrize("streamed", [False, True])
def test_formats_that_can_hold_code_are_never_decoded(suffix: str, streamed: bool, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    evil = pickle.dumps(Canary(canary))
    if suffix.startswith("np"):
        file = io.BytesIO()
        np.save(file, np.array([Canary(canary)], dtype=object), allow_pickle=True)
        evil = file.getvalue()
    (tmp_path / "t").mkdir()
    members = [("a.mp4", mp4()), (f"a.{suffix}", evil), ("a.txt", b"x"), (f"b.{suffix}", evil)]
    foreign(tmp_path / "t/a.tar", *members)
    if streamed:
        data: ListedData | StreamedTars = StreamedTars(tars=tmp_path / "t", batch_size=1, bucket=ONE.buckets["only"])
    else:
        data = ShardData(shards=tmp_path / "t", batch_size=1, buckets=ONE)
    assert "a" in {key for batch in take(data, 2) for key in batch.keys}
    assert not canary.exists()


def test_numpy_files_are_read_by_nobody_here() -> None:
    """A zip bomb in .npz and an object array in .npy need a reader; there is none."""
    for file in sorted(Path(nemo_vfm.data.__path__[0]).rglob("*.py")):
        text = file.read_text()
        assert "np.load" not in text and "numpy.load" not in text and "import pickle" not in text, file


# 26 and 27: bombs


def seconds_and_megabytes(work: Callable[[], object]) -> tuple[float, float]:
    """CPU seconds, and how much the process's peak memory rose."""
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    work()
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return time.process_time() - began, (after - before) / 1024


def gzip_bomb(num_bytes: int) -> bytes:
    packer, parts = zlib.compressobj(9, zlib.DEFLATED, 31), []
    for _ in range(num_bytes >> 24):
        parts.append(packer.compress(bytes(1 << 24)))
    return b"".join([*parts, packer.flush()])


@pytest.mark.slow
@pytest.mark.parametrize("nested", [False, True])
def test_a_compressed_bomb_is_refused_by_its_first_bytes(nested: bool, tmp_path: Path) -> None:
    bomb = gzip_bomb(1 << 28)
    (tmp_path / "a.tar").write_bytes(gzip.compress(bomb) if nested else bomb)

    def work() -> None:
        with pytest.raises(DataError, match="compressed"):
            index_tar(tmp_path / "a.tar")
        with pytest.raises(UserError, match="holds a sample"):
            take(StreamedTars(tars=tmp_path, batch_size=1, bucket=ONE.buckets["only"]), 1)

    seconds, megabytes = seconds_and_megabytes(work)
    assert seconds < 2 and megabytes < 100


@pytest.mark.slow
def test_a_bomb_inside_a_member_stays_packed(tmp_path: Path) -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as out:
        out.writestr("latents.npy", bytes(1 << 28))
    foreign(tmp_path / "a.tar", ("a.latents.npz", file.getvalue()), ("a.json.gz", gzip_bomb(1 << 28)), ("b.mp4", mp4()))
    data = ShardData(shards=tmp_path, batch_size=1, buckets=ONE)
    seconds, megabytes = seconds_and_megabytes(lambda: take(data, 1))
    assert data.num_train_samples() == 1 and seconds < 2 and megabytes < 200


JSON_BOMBS = {
    "deep": b"[" * 100_000, "deep and closed": b"[" * 100_000 + b"]" * 100_000, "nan": b'{"fps": NaN}',
    "a million keys": b"{" + b",".join(b'"%d":1' % n for n in range(1_000_000)) + b"}",
    "a huge integer": b'{"fps": ' + b"9" * 1_000_000 + b"}", "a huge float": b'{"fps": 1e999}', "not text": b"\xff\xfe",
    "a list for a number": b'{"fps": [[[[]]]], "width": {}, "height": null, "num_frames": true}', "null": b"null",
    "keys twice": b'{"fps": 1, "fps": "x"}', "negative": b'{"fps": -1, "width": 80, "height": 64, "num_frames": 12}',
}  # fmt: skip


@pytest.mark.parametrize("name", JSON_BOMBS)
def test_json_made_to_harm_costs_its_sample(name: str, tmp_path: Path) -> None:
    good = json.dumps({"fps": 8.0, "width": 80, "height": 64, "num_frames": 12}).encode()
    film = mp4()
    members = [("a.json", JSON_BOMBS[name]), ("a.mp4", film), ("b.json", good), ("b.mp4", film)]
    foreign(tmp_path / "a.tar", *members)
    data = ShardData(shards=tmp_path, batch_size=1, buckets=ONE)
    seconds, _ = seconds_and_megabytes(lambda: take(data, 2))
    assert seconds < 5 and "b" in {key for batch in take(data, 4) for key in batch.keys}


@pytest.mark.parametrize("extension", ["json", "txt"])
def test_text_beyond_a_mebibyte_is_not_even_read(extension: str, tmp_path: Path) -> None:
    huge = json.dumps({"fps": 8.0, "width": 80, "height": 64, "num_frames": 12, "more": "x" * (1 << 20)}).encode()
    members = [(f"a.{extension}", huge), ("a.mp4", mp4()), ("b.mp4", mp4(seed=1)), ("b.txt", b"said")]
    foreign(tmp_path / "a.tar", *members)
    data = ShardData(shards=tmp_path, batch_size=1, buckets=ONE)
    weights = {batch.keys[0]: float(batch.weight_B[0]) for batch in take(data, 4)}
    assert weights.pop("a", 0.0) == 0.0 and weights == {"b": 1.0}


@pytest.mark.parametrize("name", JSON_BOMBS)
def test_an_index_made_to_harm_is_a_sentence(name: str, tmp_path: Path) -> None:
    folder = latents(tmp_path / "l")
    (folder / "shards.json").write_bytes(JSON_BOMBS[name])
    with pytest.raises(NemoVfmError):
        ShardSet(folder)


# 28 and 29: damage, and pictures and latents that are bombs


def test_half_samples_and_empty_tars_cost_themselves_alone(tmp_path: Path) -> None:
    whole = foreign(tmp_path / "a.tar", ("a.mp4", mp4()), ("b.txt", b"no film"), ("c.mp4", mp4(seed=1))).read_bytes()
    (tmp_path / "a.tar").write_bytes(whole[:-14_000])
    foreign(tmp_path / "b.tar", ("d.mp4", mp4(seed=2)))
    foreign(tmp_path / "c.tar")
    data = ShardData(shards=tmp_path, batch_size=1, buckets=ONE)
    assert {key for batch in take(data, 4) for key in batch.keys} == {"a", "d"}


def test_a_checksum_that_does_not_fit_is_found(tmp_path: Path) -> None:
    folder = latents(tmp_path / "l")
    tar = folder / "shard-000001.tar"
    data = bytearray(tar.read_bytes())
    data[700] ^= 1
    tar.write_bytes(data)
    assert verify(folder) == [f"{tar} does not match its checksum"]


def png_of(width: int, height: int) -> bytes:
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunk = b"IHDR" + head
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk)) + bytes(20)


@pytest.mark.parametrize(
    ("width", "height"), [(50_000, 50_000), (1, 2**31 - 1), (2**31 - 1, 1), (0, 5), (2**32 - 1,) * 2]
)
def test_a_picture_that_would_fill_memory_is_refused_unopened(width: int, height: int) -> None:
    def work() -> None:
        with pytest.raises(DataError):
            decode_image(png_of(width, height))

    seconds, megabytes = seconds_and_megabytes(work)
    assert seconds < 1 and megabytes < 50


def safetensors(header: dict[str, object], data: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


LATENT_BOMBS = {
    "a terabyte": safetensors({"latents": {"dtype": "F32", "shape": [2**20] * 2, "data_offsets": [0, 2**42]}}),
    "more zeros than bytes": safetensors({"latents": {"dtype": "F32", "shape": [0, 2**62], "data_offsets": [0, 0]}}),
    "a negative shape": safetensors({"latents": {"dtype": "F32", "shape": [-2, 1, 2, 2], "data_offsets": [0, 32]}}),
    "a header of 2**63": (2**63).to_bytes(8, "little") + bytes(100),
    "other channels": save({"latents": torch.zeros(3, 1, 2, 2)}),
    "nan": save({"latents": torch.full(SHAPE, torch.nan)}),
    "infinity": save({"latents": torch.full(SHAPE, torch.inf)}),
    "integers": save({"latents": torch.zeros(SHAPE, dtype=torch.int32)}),
}  # fmt: skip


@pytest.mark.parametrize("name", LATENT_BOMBS)
def test_a_latent_that_is_a_bomb_is_named_and_weighs_nothing(name: str, tmp_path: Path) -> None:
    data = ShardData(shards=latents(tmp_path / "l", s5=LATENT_BOMBS[name]), batch_size=4, shuffle=False)
    batches: list[Batch] = []
    _, megabytes = seconds_and_megabytes(lambda: batches.extend(take(data, 3)))
    assert data.faults.by_sample == {"s5": 1} and megabytes < 100
    assert [w for b in batches for w in b.weight_B.tolist()] == [1] * 5 + [0] + [1] * 6
    assert all(torch.isfinite(b.latents_BCTHW).all() for b in batches)


# 30: workers


@pytest.fixture
def working(tmp_path: Path) -> Iterator[tuple[Batches, Iterator[Batch], list[psutil.Process]]]:
    """Video batches read by two processes, and those; somebody else's loader has left torch's handler behind."""
    assert len(list(torch.utils.data.DataLoader(range(3), num_workers=1))) == 3
    before = {child.pid for child in psutil.Process().children()}
    data = ShardData(shards=films(tmp_path / "f"), batch_size=2, buckets=ONE, num_workers=2)
    data.start(seed=0, first_batch=0)
    batches = data.train_dataloader()
    assert isinstance(batches, Batches)
    batches._timeout_s = 2.0
    given = iter(batches)
    next(given)
    workers = [child for child in psutil.Process().children() if child.pid not in before]
    assert len(workers) == 2
    yield batches, given, workers
    for worker in workers:
        if worker.is_running():
            worker.send_signal(signal.SIGCONT)


def until_told(given: Iterator[Batch]) -> tuple[float, str]:
    began = time.perf_counter()
    with pytest.raises(DataError) as caught:
        for _ in range(1000):
            next(given)
    return time.perf_counter() - began, str(caught.value)


def test_a_worker_that_is_killed_is_told_at_once(working) -> None:
    _, given, workers = working
    workers[0].send_signal(signal.SIGKILL)
    seconds, said = until_told(given)
    assert seconds < 5 and "died" in said and "memory" in said


def test_a_death_interrupts_nothing_but_the_next_batch(working) -> None:
    """torch alone would raise here in the middle of the loop, which may be an optimizer's step or a checkpoint."""
    _, given, workers = working
    for worker in workers:
        worker.send_signal(signal.SIGKILL)
    for _ in range(20):
        time.sleep(0.01)
    assert "died" in until_told(given)[1]


@pytest.mark.slow
def test_a_worker_that_is_stopped_is_told_within_the_timeout(working) -> None:
    _, given, workers = working
    workers[0].send_signal(signal.SIGSTOP)
    seconds, said = until_told(given)
    assert seconds < 6 and "within 2 s" in said


def test_a_worker_that_raises_passes_the_sentence_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = ShardData(shards=films(tmp_path / "f"), batch_size=2, buckets=ONE, num_workers=1)
    data.start(seed=0, first_batch=0)
    (tmp_path / "f/shard-000000.tar").write_bytes(b"")
    with pytest.raises(ShardChanged, match="changed during training"):
        next(iter(data.train_dataloader()))


def cycle(data: ShardData, kill: bool) -> None:
    data.start(seed=0, first_batch=0)
    others = {child.pid for child in psutil.Process().children()}
    given = iter(data.train_dataloader())
    next(given)
    if kill:
        for child in psutil.Process().children():
            if child.pid not in others:
                WORKERS.add(child.pid)
                child.send_signal(signal.SIGKILL)
        until_told(given)
    given.close()  # type: ignore[attr-defined]
    del given
    gc.collect()


@pytest.mark.slow
@pytest.mark.parametrize("cycles", [1, pytest.param(50, marks=pytest.mark.soak)])
def test_killed_workers_leave_no_memory_files_or_zombies(cycles: int, tmp_path: Path) -> None:
    data = ShardData(shards=films(tmp_path / "f"), batch_size=2, buckets=ONE, num_workers=2)
    cycle(data, kill=False)  # what is opened once and kept
    before, files = held(), psutil.Process().num_fds()
    for _ in range(cycles):
        cycle(data, kill=True)
    assert not settled(before) and psutil.Process().num_fds() <= files


def test_threads_that_read_ahead_end_with_their_iterator(tmp_path: Path) -> None:
    before = threading.active_count()
    for data in (
        ShardData(shards=latents(tmp_path / "l"), batch_size=2, num_workers=2),
        StreamedTars(tars=tmp_path / "l", batch_size=2, num_workers=2),
    ):
        data.start(seed=0, first_batch=0)
        given = iter(data.train_dataloader())
        next(given)
        given.close()  # type: ignore[attr-defined]
    for _ in range(100):
        if threading.active_count() <= before:
            break
        time.sleep(0.05)
    assert threading.active_count() <= before


# 31: uneven and empty


def test_fewer_shards_than_ranks_and_workers_still_give_everyone_the_same_number(tmp_path: Path) -> None:
    folder = latents(tmp_path / "l", count=5)  # a shard of three and one of two, 4 ranks of 2 workers
    ranks = []
    for rank in range(4):
        data = ShardData(shards=folder, batch_size=4, num_workers=2)
        data.start(seed=0, first_batch=0, rank=rank, num_ranks=4)
        ranks.append(list(islice(data.train_dataloader(), 10)))
    assert {len(batch) for batches in ranks for batch in batches} == {1}
    keys = [key for batches in zip(*ranks, strict=True) for batch in batches for key in batch.keys]
    assert all(set(keys[at : at + 5]) == {f"s{n}" for n in range(5)} for at in range(0, 40, 5))


def test_no_sample_at_all_is_a_sentence_and_never_a_wait(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "none"):
        pass
    with pytest.raises(UserError, match="no samples"):
        take(ShardData(shards=tmp_path / "none", batch_size=1), 1)
    with pytest.raises(UserError, match="left to train on"):
        huge = Buckets(buckets={"huge": Bucket(4000, 4000, 5)})
        take(ShardData(shards=films(tmp_path / "f"), batch_size=1, buckets=huge), 1)
    with pytest.raises(UserError, match="left to train on"):
        take(ShardData(shards=latents(tmp_path / "l"), batch_size=1, val_fraction=0.999999), 1)


# 32: shards that change while they are read


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_shard_written_over_stops_the_run(num_workers: int, tmp_path: Path) -> None:
    folder = latents(tmp_path / "l")
    data = ShardData(shards=folder, batch_size=4, num_workers=num_workers)
    data.start(seed=0, first_batch=0)
    tar = folder / "shard-000002.tar"
    changed = bytearray(tar.read_bytes())
    changed[600] ^= 1
    os.utime(tar, ns=(1, 1))
    tar.write_bytes(changed)  # as large as before
    with pytest.raises(ShardChanged, match="shard-000002"):
        list(islice(data.train_dataloader(), 40))


def test_a_shard_exchanged_by_renaming_stops_who_opens_it_and_not_who_has_it_open(tmp_path: Path) -> None:
    one, two = latents(tmp_path / "one"), latents(tmp_path / "two", s0=save({"latents": torch.ones(SHAPE)}))
    reading, waiting = ShardSet(one), ShardSet(one)
    first = reading.read(reading.entries[0], "latents.safetensors")
    (two / "shard-000000.tar").replace(one / "shard-000000.tar")
    assert reading.read(reading.entries[0], "latents.safetensors") == first
    with pytest.raises(ShardChanged):
        waiting.read(waiting.entries[0], "latents.safetensors")


def test_a_tar_exchanged_without_its_index_is_found_at_the_start(tmp_path: Path) -> None:
    large = save({"latents": torch.zeros(1000)})
    one, two = latents(tmp_path / "one"), latents(tmp_path / "two", s0=large * 3)
    (two / "shard-000000.tar").replace(one / "shard-000000.tar")
    with pytest.raises(DataError, match=r"shards\.json says"):
        ShardSet(one)


# 33: two users, one machine, one name


def test_data_sets_of_one_name_share_nothing(tmp_path: Path) -> None:
    for user, seed in (("ann", 0), ("bob", 1)):
        (tmp_path / user / "videos").mkdir(parents=True)
        (tmp_path / user / "videos/a.mp4").write_bytes(mp4(seed=seed))
    index = tmp_path / "index.json"  # even where both name the same file
    both = [
        take(VideoFolder(path=tmp_path / user / "videos", buckets=ONE, batch_size=1, index=index), 1)[0]
        for user in ("ann", "bob")
    ]
    alone = take(VideoFolder(path=tmp_path / "bob/videos", buckets=ONE, batch_size=1), 1)[0]
    assert torch.equal(both[1].video_BCTHW, alone.video_BCTHW)
    assert not torch.equal(both[0].video_BCTHW, both[1].video_BCTHW)


def test_a_cache_that_two_share_holds_each_ones_bytes_by_their_hash(tmp_path: Path) -> None:
    cache = ShardCache(folder=tmp_path / "cache", max_gb=1)
    names = {cache.folder / f"{sha}.tar" for sha in ("a" * 64, "b" * 64)}
    assert len(names) == 2
    assert pickle.loads(pickle.dumps(cache)).folder == cache.folder
