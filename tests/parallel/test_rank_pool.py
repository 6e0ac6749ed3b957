"""Tests that the processes of a pool outlive what is raised in them."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nemo_vfm.parallel.verify.rank_pool import Pool, RankFailed


def raises(rank: int, which: int) -> None:
    """One rank's own error; the other waits for it in a sum that never comes."""
    import torch
    import torch.distributed as dist

    if rank == which:
        raise ValueError("a bad day")
    dist.all_reduce(torch.ones(1))


def own_pid(rank: int) -> int:
    import torch
    import torch.distributed as dist

    found = torch.ones(1)
    dist.all_reduce(found)
    assert int(found) == 2
    return os.getpid()


def dies(rank: int) -> None:
    os._exit(3)


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    """Processes begun as commands begin them."""
    with Pool(4) as made:
        yield made


@pytest.mark.cluster  # several ranks
def test_what_a_rank_raises_leaves_the_processes_and_a_death_ends_them_all(pool: Pool):
    before = pool.call(2, own_pid)
    for which in (0, 1):
        with pytest.raises(RankFailed, match=rf"(?s)rank {which}: Traceback.*ValueError: a bad day"):
            pool.call(2, raises, which)
        assert pool.call(2, own_pid) == before
    with pytest.raises(RankFailed, match="rank 0: its process ended with status 3"):
        pool.call(1, dies)
    assert not set(pool.call(2, own_pid)) & set(before)


def threads(rank: int) -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def holds_meshes(rank: int, degree: int) -> None:
    """What torch remembers by mesh: a spread tensor's product and how its parts travel."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (degree, 2 // degree), mesh_dim_names=("tensor", "shard"))
    spread = distribute_tensor(torch.ones(4, 4), mesh, [Shard(0), Shard(1)])
    assert float((spread @ spread).redistribute(mesh, [Replicate(), Replicate()]).to_local().sum()) == 64.0


@pytest.mark.cluster  # several ranks
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
def test_groups_of_earlier_calls_leave_no_threads_behind(pool: Pool):
    pool.call(2, holds_meshes, 1)
    before = pool.call(2, threads)
    for degree in (2, 1, 2):
        pool.call(2, holds_meshes, degree)
    assert pool.call(2, threads) == before
