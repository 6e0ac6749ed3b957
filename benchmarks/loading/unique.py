"""Measures the bytes that R ranks with shared fetching really move, over what the formula says.

Four processes over gloo on this machine, in groups of R = 4 and of R = 2. With N bytes in the members of the batches'
samples the storage should give N in all, and each rank should receive N (R - 1) / R; plain loading reads R N and what
lies between members. Fetched bytes are counted where the shards' files are read, not by the loader's own counter.
Batches are compared with plain loading's, bit by bit.
"""

import os
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta
from hashlib import sha256
from itertools import islice
from multiprocessing import get_context
from pathlib import Path

from loading.latents import BATCH, LATENTS, TEXT

RANKS, GROUPS, BATCHES = 4, (4, 2), 8
Moved = tuple[int, int, int, int, bool]  # N, read plainly, fetched together, gathered, whether the batches are equal


def measure(folder: Path) -> dict[str, float]:
    """Measured over formula, 1 where they agree; and plainly fetched bytes over fetched together, R."""
    with tempfile.TemporaryDirectory() as meeting, ProcessPoolExecutor(RANKS, get_context("spawn")) as processes:
        ranks = list(processes.map(_rank, range(RANKS), [folder] * RANKS, [Path(meeting) / "store"] * RANKS))
    figures = {}
    for which, size in enumerate(GROUPS):
        moved = [rank[which] for rank in ranks[:size]]
        assert all(same for *_, same in moved), "shared loading gives other batches"
        needed = moved[0][0]
        plain, fetched, gathered = (sum(rank[column] for rank in moved) for column in (1, 2, 3))
        print(f"{size} ranks, {BATCHES} batches of {needed:,} bytes: plainly {plain:,} fetched; together {fetched:,} "
              f"fetched, {gathered:,} gathered; most on one rank {max(rank[2] for rank in moved):,}")  # fmt: skip
        figures |= {
            f"unique_fetched_over_formula_{size}": fetched / needed,
            f"unique_gathered_over_formula_{size}": gathered / (needed * (size - 1)),
            f"plain_over_unique_fetched_{size}": plain / fetched,
        }
    return figures


def _rank(rank: int, folder: Path, store: Path) -> list[Moved]:
    """One process: every size of group after another."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    import torch.distributed as dist

    from nemo_vfm.core.log import logger
    from nemo_vfm.parallel.ranks.gather import Gather

    logger().setLevel("WARNING")
    timeout = timedelta(seconds=60)
    dist.init_process_group("gloo", store=dist.FileStore(str(store), RANKS), rank=rank, world_size=RANKS,
                            timeout=timeout)  # fmt: skip
    found = []
    for size in GROUPS:
        groups = [dist.new_group(list(range(first, first + size)), timeout=timeout) for first in range(0, RANKS, size)]
        peers = Gather(groups[rank // size])
        plain, needed, plainly, _ = _read(folder, None)
        shared, _, together, gathered = _read(folder, peers)
        found.append((needed, plainly, together, gathered, plain == shared))
    dist.barrier()
    dist.destroy_process_group()
    return found


def _read(folder: Path, peers: object) -> tuple[Sequence[str], int, int, int]:
    """Hashes of the batches, bytes of their members, bytes read from the shards' files, and bytes that others sent."""
    from nemo_vfm.data.shards.read_in_place import Buffers
    from nemo_vfm.data.shards.shard_folder import LocalShard
    from nemo_vfm.data.sources.shard_data import ShardData

    data, counted = ShardData(shards=folder, batch_size=BATCH), 0
    data.share_with(peers)
    data.start(seed=0, first_batch=0)
    source = data.by_number()
    chosen = (source.schedule.samples(index, 0, 1) for index in range(BATCHES))
    entries = [entry for samples in chosen for entry in source.reader.entries(samples.ids)]
    needed = sum(entry.members[name][1] for entry in entries for name in (LATENTS, TEXT))
    inner, inner_into = LocalShard.read, LocalShard.read_into

    def read(shard: LocalShard, offset: int, size: int) -> bytes:
        nonlocal counted
        counted += size
        return inner(shard, offset, size)

    def read_into(shard: LocalShard, offset: int, buffers: Buffers) -> int:
        nonlocal counted
        counted += (size := inner_into(shard, offset, buffers))
        return size

    LocalShard.read, LocalShard.read_into = read, read_into
    try:
        hashes = [sha256(batch.latents_BCTHW.numpy().tobytes() + repr(batch.keys).encode()).hexdigest()
                  for batch in islice(data.train_dataloader(), BATCHES)]  # fmt: skip
    finally:
        LocalShard.read, LocalShard.read_into = inner, inner_into
    return hashes, needed, counted, data.traffic.gathered
