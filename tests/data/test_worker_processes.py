"""Tests that workers that grow are replaced before memory runs out, with nothing lost or read twice."""

import gc
import mmap
import signal
import time
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path

import numpy as np
import psutil
import pytest

from nemo_vfm.core.errors import DataError
from nemo_vfm.core.types.batch import Batch
from nemo_vfm.data.batching.bucket import Bucket, Buckets
from nemo_vfm.data.loader import worker_processes
from nemo_vfm.data.loader.batch_loader import Batches
from nemo_vfm.data.loader.worker_processes import own_bytes, part_of
from nemo_vfm.data.shards import sample_reader
from nemo_vfm.data.shards.shard_files import ShardWriter
from nemo_vfm.data.sources.shard_data import ShardData
from tests.data.conftest import mp4

ONE = Buckets(buckets={"only": Bucket(32, 32, 5, 8)})
LEAKED, ALLOWED, WORKERS = 4 << 20, 64 << 20, 2

HELD: list[mmap.mmap] = []


@pytest.fixture
def films(tmp_path: Path) -> Path:
    with ShardWriter(tmp_path / "films") as writer:
        for number in range(6):
            facts = {"caption": "", "fps": 8.0, "width": 80, "height": 64, "num_frames": 12}
            writer.write(f"f{number}", {"mp4": mp4(seed=number)}, facts)
    return tmp_path / "films"


@pytest.fixture
def leak(monkeypatch: pytest.MonkeyPatch) -> None:
    """A decoder that keeps 4 MiB of every video."""
    whole = sample_reader.video_to_bucket

    def leaks(*arguments: object) -> object:
        pages = mmap.mmap(-1, LEAKED, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # not what a long session left free
        pages.write(b"1" * LEAKED)
        HELD.append(pages)
        return whole(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(sample_reader, "video_to_bucket", leaks)


def batches(films: Path, num_workers: int = WORKERS, allowed: int | None = ALLOWED) -> Batches:
    data = ShardData(shards=films, batch_size=1, buckets=ONE, num_workers=num_workers)
    data.start(seed=3, first_batch=2)
    found = data.train_dataloader()
    assert isinstance(found, Batches)
    found._max_growth_bytes = allowed
    return found


def contents(given: Iterator[Batch], count: int) -> list[tuple[object, ...]]:
    return [(b.index, b.keys, b.video_BCTHW.numpy().tobytes()) for b in islice(given, count)]


def children() -> dict[int, psutil.Process]:
    return {child.pid: child for child in psutil.Process().children()}


def test_ctrl_c_which_reaches_the_whole_terminal_ends_no_worker(films: Path) -> None:
    others, given = children().keys(), iter(batches(films, num_workers=1))
    first = [next(given).keys]
    (worker,) = [child for pid, child in children().items() if pid not in others]
    worker.send_signal(signal.SIGINT)
    expected = [batch.keys for batch in islice(batches(films, num_workers=0), 60)]
    assert first + [batch.keys for batch in islice(given, 59)] == expected and worker.is_running()


@pytest.mark.slow  # processes that grow
def test_workers_that_leak_are_replaced_in_time_and_the_batches_are_the_same(
    films: Path, leak: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr("nemo_vfm.data.loader.worker_processes.warn", said.append)
    plain = contents(iter(batches(films, num_workers=0)), 120)
    HELD.clear()
    others, given = children().keys(), iter(batches(films))
    seen: dict[int, list[int]] = {}
    found = []
    for batch in islice(given, 120):
        found.append((batch.index, batch.keys, batch.video_BCTHW.numpy().tobytes()))
        for pid, child in children().items():
            if pid not in others and child.status() != psutil.STATUS_ZOMBIE:
                memory = child.memory_info()
                seen.setdefault(pid, []).append(memory.rss - memory.shared)
    assert found == plain
    assert len(seen) >= 3 * WORKERS  # 60 videos a worker are 240 MiB, and 64 MiB are allowed
    grown = [max(own) - min(own) for own in seen.values()]
    assert max(grown) < ALLOWED + 12 * LEAKED + (16 << 20)  # until it is told, and what was begun by then
    assert len(said) == 1 and "0.07 GB" in said[0] and "max_memory_share" in said[0]
    given.close()  # type: ignore[attr-defined]
    gc.collect()
    for _ in range(100):
        if not (left := seen.keys() & children().keys()):
            break
        time.sleep(0.05)
    assert not left and not [path for pid in seen for path in Path("/dev/shm").glob(f"torch_{pid}_*")]


@pytest.mark.slow
@pytest.mark.parametrize("allowed", [None, 1 << 40])
def test_workers_that_may_grow_stay(films: Path, leak: None, allowed: int | None) -> None:
    others, given = children().keys(), iter(batches(films, num_workers=1, allowed=allowed))
    next(given)
    before = children().keys() - others
    contents(given, 40)
    assert len(before) == 1 and children().keys() - others == before


def test_what_the_trainer_holds_is_not_the_workers(films: Path) -> None:
    held = np.ones(4 * ALLOWED, np.uint8)
    others, given = children().keys(), iter(batches(films, num_workers=1))
    next(given)
    before = children().keys() - others
    contents(given, 30)
    assert children().keys() - others == before
    del held


@pytest.mark.slow
def test_a_limit_that_no_worker_can_keep_still_lets_each_read_some_batches(films: Path) -> None:
    plain = contents(iter(batches(films, num_workers=0)), 40)
    others, given, seen = children().keys(), iter(batches(films, num_workers=1, allowed=0)), set()
    found = []
    for batch in islice(given, 40):
        found.append((batch.index, batch.keys, batch.video_BCTHW.numpy().tobytes()))
        seen |= children().keys() - others
    assert found == plain and 2 <= len(seen) <= 5


def test_one_that_is_killed_after_others_were_replaced_is_told(films: Path, leak: None) -> None:
    others, given = children().keys(), iter(batches(films, num_workers=1))
    first = None
    for _ in range(200):
        next(given)
        workers = children().keys() - others
        first = first or workers
        if not workers & first:
            break
    (worker,) = (child for pid, child in children().items() if pid not in others)
    worker.kill()
    with pytest.raises(DataError, match="died"):
        contents(given, 50)


def test_a_workers_part_is_of_what_the_machine_or_the_container_has(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(worker_processes, "_LIMITS", (limit,))
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert part_of(1.0, 1) == psutil.virtual_memory().total
    limit.write_text("max\n")
    assert part_of(1.0, 1) == psutil.virtual_memory().total
    limit.write_text("8000000000\n")
    assert (part_of(0.5, 1), part_of(0.5, 4), part_of(0.5, 100)) == (4_000_000_000, 1_000_000_000, 512 << 20)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert part_of(0.5, 1) == 1_000_000_000
    assert part_of(None, 4) is None and part_of(0.5, 0) is None


def test_memory_of_ones_own_is_counted_and_files_are_not(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(64 << 20))
    before = own_bytes()
    mapped = np.memmap(tmp_path / "file", np.uint8, "r")
    assert mapped.sum() == 0 and own_bytes() - before < 16 << 20
    # Its own pages, which an array may get from what the process had freed.
    with mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as own:
        own.write(b"1" * (64 << 20))
        assert own_bytes() - before > 60 << 20
    del mapped


@pytest.mark.parametrize("share", [0.0, -1.0, 1.5, float("nan")])
def test_an_impossible_share_is_refused(share: float) -> None:
    arguments: Mapping[str, float] = {"max_memory_share": share}
    with pytest.raises(ValueError, match="max_memory_share must be"):
        ShardData(shards=Path("x"), batch_size=1, **arguments)  # type: ignore[arg-type]
