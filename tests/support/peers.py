"""Runs cases on four real processes that share data over gloo, and records what each saw.

Each runs all cases one after another, as a copy of the server of `preloaded.py`: begun anew, it imports for seconds.
"""

import hashlib
import json
import os
import pickle
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from itertools import islice
from pathlib import Path

from nemo_vfm.core.types.batch import Batch
from tests.support import preloaded

NUM_RANKS = 4
TIMEOUT_S = 20.0
PAIR_TIMEOUT_S = 10.0  # one of a pair is stopped, and the other waits so long


@dataclass
class Case:
    """What one rank does.

    Args:
        name: of the result.
        folder: of shards.
        group_size: 4 all, 2 in pairs.
        num_batches: taken.
        arguments: of ShardData.
        buckets: of one shape, (width, height, frames); None for latents.
        firsts: rank -> number of its first batch.
        fails: rank -> key of the sample, and kind of error.
        dies_after: rank -> batches after which its process ends.
        hangs_after: rank -> batches after which its process is stopped.
        slow_s: rank -> seconds that each of its reads takes longer.
        seeds: rank -> another seed.
        folders: rank -> other shards.
    """

    name: str
    folder: Path
    group_size: int = NUM_RANKS
    num_batches: int = 6
    arguments: dict[str, int] = field(default_factory=dict)
    buckets: tuple[int, int, int] | None = None
    firsts: dict[int, int] = field(default_factory=dict)
    fails: dict[int, tuple[str, str]] = field(default_factory=dict)
    dies_after: dict[int, int] = field(default_factory=dict)
    hangs_after: dict[int, int] = field(default_factory=dict)
    slow_s: dict[int, float] = field(default_factory=dict)
    seeds: dict[int, int] = field(default_factory=dict)
    folders: dict[int, Path] = field(default_factory=dict)


def digest(batch: Batch) -> str:
    """Everything that is in a batch."""
    state = hashlib.sha256(repr((batch.index, batch.keys, batch.captions)).encode())
    for name in ("weight_B", "fps_B", "latents_BCTHW", "video_BCTHW", "text_BLD", "text_mask_BL"):
        tensor = getattr(batch, name)
        state.update(name.encode() if tensor is None else tensor.numpy().tobytes())
    state.update(b"".join(tensor.numpy().tobytes() for tensor in batch.members.values()))
    return state.hexdigest()


def data_of(case: Case):
    from nemo_vfm.data.batching.bucket import Bucket, Buckets
    from nemo_vfm.data.sources.shard_data import ShardData

    buckets = None
    if case.buckets is not None:
        width, height, frames = case.buckets
        buckets = Buckets(buckets={"one": Bucket(width=width, height=height, num_frames=frames)})
    return ShardData(shards=case.folder, buckets=buckets, **case.arguments)


def run(cases: list[Case], folder: Path) -> list[dict[str, dict[str, object]]]:
    """What each rank saw, by the case's name; a rank that died or was stopped has what it saw before."""
    (folder / "cases").write_bytes(pickle.dumps(cases))
    codes = [f"from {__name__} import run_rank; run_rank({rank}, {str(folder)!r})" for rank in range(NUM_RANKS)]
    processes = [
        preloaded.Started([sys.executable, "-c", code], err=folder / f"{rank}.err") for rank, code in enumerate(codes)
    ]
    stopped = {rank for case in cases for rank in case.hangs_after}
    try:
        for rank, process in enumerate(processes):
            if rank not in stopped:
                process.wait(120)  # one that hangs raises
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [_read(folder / f"{rank}.jsonl") for rank in range(NUM_RANKS)]


def _read(path: Path) -> dict[str, dict[str, object]]:
    return {line["case"]: line for line in map(json.loads, path.read_text().splitlines())}


def run_rank(rank: int, path: str) -> None:
    """What runs in the process of a rank."""
    folder = Path(path)
    cases: list[Case] = pickle.loads((folder / "cases").read_bytes())
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    timeout = timedelta(seconds=TIMEOUT_S)
    dist.init_process_group(
        "gloo", store=dist.FileStore(str(folder / "store"), NUM_RANKS), rank=rank, world_size=NUM_RANKS, timeout=timeout
    )
    brief = timedelta(seconds=PAIR_TIMEOUT_S)
    pairs = [dist.new_group(ranks, backend="gloo", timeout=brief) for ranks in ([0, 1], [2, 3])]
    everyone = dist.new_group(list(range(NUM_RANKS)), backend="gloo", timeout=timeout)
    with (folder / f"{rank}.jsonl").open("w") as file:
        for case in cases:
            group = everyone if case.group_size == NUM_RANKS else pairs[rank // 2]
            print(json.dumps(_case(case, rank, group)), file=file, flush=True)
    os._exit(0)  # a group with a dead member cannot be left politely


def _case(case: Case, rank: int, group: object) -> dict[str, object]:
    from nemo_vfm.parallel.ranks.gather import Gather

    data, start = data_of(replace(case, folder=case.folders.get(rank, case.folder))), time.monotonic()
    seen: dict[str, object] = {"case": case.name, "batches": [], "error": None, "said": []}
    data.faults.count = _noting(data.faults.count, seen["said"])
    data.share_with(Gather(group))
    split = {"rank": rank // 2, "num_ranks": 2} if case.group_size == 2 else {}
    data.start(seed=case.seeds.get(rank, 3), first_batch=case.firsts.get(rank, 0), **split)
    if rank in case.fails:
        _break(data, *case.fails[rank])
    if rank in case.slow_s:
        _slow(data, case.slow_s[rank])
    batches = iter(data.train_dataloader())
    try:
        ends = case.dies_after | case.hangs_after
        for batch in islice(batches, ends.get(rank, case.num_batches)):
            seen["batches"].append(digest(batch))
        if rank in case.hangs_after:
            os.kill(os.getpid(), signal.SIGSTOP)
        if rank in case.dies_after:
            os._exit(1)
    except Exception as error:
        seen["error"] = [type(error).__name__, str(error)]
    batches.close()
    return seen | {
        "traffic": asdict(data.traffic),
        "seconds": time.monotonic() - start,
        "faults": dict(data.faults.by_sample),
    }


def _noting(count: Callable[[list[object]], None], said: list[str]) -> Callable[[list[object]], None]:
    """Counts faults as before, and keeps their words."""

    def counted(found: list[object]) -> None:
        said.extend(str(fault) for fault in found if fault is not None)
        count(found)

    return counted


def _slow(data: object, seconds: float) -> None:
    samples = data._open().samples.inner
    inner = samples.read_span

    def read_span(*where: object) -> bytes:
        time.sleep(seconds)
        return inner(*where)

    samples.read_span = read_span


def _break(data: object, key: str, kind: str) -> None:
    """From here on this rank's storage fails for one sample."""
    from nemo_vfm.core import errors

    samples = data._open().samples.inner
    inner = samples.read_span

    def read_span(entry, offset: int, size: int) -> bytes:
        if entry.key == key:
            raise getattr(errors, kind)(f"{kind} on purpose")
        return inner(entry, offset, size)

    samples.read_span = read_span
