"""Tests that a training resumed in other layouts gives the losses of one that never stopped."""

from pathlib import Path
from typing import Any

import pytest
import torch

from nemo_vfm.parallel.checkpoint import checkpoint
from nemo_vfm.parallel.checkpoint.checkpoint_ranks import gather_group
from nemo_vfm.parallel.checkpoint.checkpoint_reader import SavedTensors
from nemo_vfm.parallel.plan.plan import ParallelPlan
from tests.support.combinations import cases
from tests.support.layouts import own, started
from tests.support.ranks import on_ranks

pytestmark = pytest.mark.cluster  # several ranks

STEPS = 9


def part(
    rank: int, degrees: dict[str, Any], folder: Path, first: int, last: int, how: dict[str, Any] | None = None
) -> list[tuple[float, float]]:
    """Steps first..last from the newest checkpoint in the folder, and a checkpoint at the end."""
    plan = ParallelPlan(**degrees)
    engine, ranks = started(plan, **(how or {})), gather_group()
    saved = checkpoint.open_latest(folder, ranks) if first else None
    assert (saved.step if saved else 0) == first
    if saved is not None:
        engine.load(saved.groups)
    results = [engine.step([own(plan, rank, index)]) for index in range(first, last)]
    checkpoint.save(folder, last, engine.tensors(), {"step": last}, ranks=ranks)
    return [(result.loss, result.grad_norm) for result in results]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[float, float]]:
    return on_ranks(1, part, {}, tmp_path_factory.mktemp("whole"), 0, STEPS)[0]


ROADS = [
    [(2, {"shard": 2}), (1, {}), (4, {"shard": 4})],
    [(2, {"tensor": 2, "sequence": True}), (1, {}), (4, {"tensor": 2, "shard": 2})],
    [(4, {"context": 2, "replicate": 2}), (2, {"tensor": 2}), (2, {"replicate": 2})],
]


@pytest.mark.parametrize("road", cases([(road,) for road in ROADS], [(ROADS[2],)]), ids=str)
def test_going_on_in_other_layouts_changes_no_loss(tmp_path: Path, whole: list[tuple[float, float]], road: Any):
    seen: list[tuple[float, float]] = []
    for number, (count, degrees) in enumerate(road):
        found = on_ranks(count, part, degrees, tmp_path, 3 * number, 3 * number + 3)
        assert all(one == found[0] for one in found)
        seen += found[0]
    assert [loss for loss, _ in seen] == pytest.approx([loss for loss, _ in whole], rel=1e-5)
    assert [norm for _, norm in seen] == pytest.approx([norm for _, norm in whole], rel=1e-5)


def test_state_that_lies_on_the_host_goes_on_on_the_device_and_back(tmp_path: Path, whole: list[tuple[float, float]]):
    seen: list[tuple[float, float]] = []
    for number, (count, degrees, offload) in enumerate([(2, {"shard": 2}, True), (1, {}, False), (1, {}, True)]):
        last = 3 * number + 3
        seen += on_ranks(count, part, degrees, tmp_path, last - 3, last, {"offload_optimizer": offload})[0]
    assert [loss for loss, _ in seen] == pytest.approx([loss for loss, _ in whole], rel=1e-5)


def test_going_on_without_the_optimizers_state_is_seen(tmp_path: Path, whole: list[tuple[float, float]]):
    on_ranks(1, part, {}, tmp_path, 0, 3)
    found = on_ranks(2, forgetful, {"shard": 2}, tmp_path)[0]
    assert found[0] == pytest.approx(whole[3][0], rel=1e-5)
    assert found[2] != pytest.approx(whole[5][0], rel=1e-4)


def forgetful(rank: int, degrees: dict[str, Any], folder: Path) -> list[float]:
    """Three steps on with the weights alone."""
    plan = ParallelPlan(**degrees)
    engine, saved = started(plan), checkpoint.open_latest(folder, gather_group())
    assert saved is not None
    engine.load({**saved.groups, "optimizer": {}})
    return [engine.step([own(plan, rank, index)]).loss for index in range(3, 6)]


def bytes_read(rank: int, degrees: dict[str, Any], folder: Path) -> int:
    """What this rank takes out of files when it goes on: weights and the optimizer's state."""
    engine, saved, read = (
        started(ParallelPlan(**degrees)),
        checkpoint.open_latest(folder, gather_group()),
        SavedTensors._part,
    )
    assert saved is not None
    parts: list[torch.Tensor] = []

    def counted(self: SavedTensors, *place: Any) -> torch.Tensor:
        parts.append(read(self, *place))
        return parts[-1]

    SavedTensors._part = counted  # type: ignore[method-assign]
    try:
        engine.load(saved.groups)
    finally:
        SavedTensors._part = read  # type: ignore[method-assign]
    return sum(part.nbytes for part in parts)


def test_each_rank_reads_its_part_alone(tmp_path: Path):
    on_ranks(2, part, {"shard": 2}, tmp_path, 0, 1)
    (whole,) = on_ranks(1, bytes_read, {}, tmp_path)
    assert whole == sum(file.stat().st_size for file in tmp_path.rglob("*.safetensors")) - headers(tmp_path)
    for degrees in ({"shard": 2}, {"pipeline": 2, "microbatches": 2}):
        assert max(on_ranks(2, bytes_read, degrees, tmp_path)) < 0.7 * whole


def headers(folder: Path) -> int:
    """Bytes of files that are not tensors."""
    return sum(8 + int.from_bytes(file.read_bytes()[:8], "little") for file in folder.rglob("*.safetensors"))


def test_weights_that_are_put_into_the_model_reach_those_on_the_host():
    losses = []
    for offload in (False, True):
        plan = ParallelPlan()
        engine = started(plan, offload_optimizer=offload)
        with torch.no_grad():
            for parameter in engine.model.parameters():
                parameter.mul_(1.5)  # as a warm start does, after the engine's start
        losses.append([engine.step([own(plan, 0, index)]).loss for index in range(2)])
    assert losses[1] == pytest.approx(losses[0], rel=1e-6)
