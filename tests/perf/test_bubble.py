"""Tests the formulas of pipeline schedules against torch's replayed order of work and published numbers."""

import pytest
from torch.distributed.pipelining import schedules

from nemo_vfm.parallel.plan.plan import ParallelPlan
from nemo_vfm.perf.step_time import wait_ratio

#: Units that a forward, a whole backward and its two halves take.
UNITS = {"F": 1.0, "B": 2.0, "I": 1.0, "W": 1.0}


def plan(pipeline: int, virtual: int, microbatches: int, schedule: str) -> ParallelPlan:
    return ParallelPlan(pipeline=pipeline, virtual=virtual, microbatches=microbatches, schedule=schedule)


@pytest.mark.parametrize(("microbatches", "with_virtual", "without"), [(48, 0.029, 0.23), (36, 0.038, 0.31)])
def test_nemotrons_pipeline_of_twelve_waits_what_its_report_implies(microbatches, with_virtual, without):
    assert wait_ratio(plan(12, 8, microbatches, "interleaved")) == pytest.approx(with_virtual, abs=5e-4)
    assert wait_ratio(plan(12, 1, microbatches, "1f1b")) == pytest.approx(without, abs=5e-3)


def test_the_share_of_a_step_is_what_the_page_of_devices_says():
    assert wait_ratio(plan(4, 1, 8, "1f1b")) == pytest.approx(3 / 8)  # 3/11 of a step
    assert wait_ratio(plan(4, 2, 8, "interleaved")) == pytest.approx(3 / 16)  # 3/19


def order(of: ParallelPlan) -> dict[int, list[tuple[str, int, int]]]:
    """What each rank does, in torch's order: (kind, stage, microbatch)."""
    zero = of.schedule == "zero_bubble"
    made = object.__new__(schedules.ScheduleInterleavedZeroBubble if zero else schedules.ScheduleInterleaved1F1B)
    made.pp_group_size, made.n_local_stages, made._n_microbatches = of.pipeline, of.virtual, of.microbatches
    made.number_of_rounds = max(1, of.microbatches // of.pipeline)
    made.microbatches_per_round = of.microbatches // made.number_of_rounds
    found = {rank: made._calculate_single_rank_operations(rank) for rank in range(of.pipeline)}
    return {rank: [(one[1].value, one[0], one[2]) for one in actions if one] for rank, actions in found.items()}


def one_by_one(of: ParallelPlan) -> dict[int, list[tuple[str, int, int]]]:
    """The order of 1F1B: forwards until the last stage has one, then backward and forward in turns, then the rest."""
    found = {}
    for rank in range(of.pipeline):
        ahead = min(of.pipeline - 1 - rank, of.microbatches)
        turns = [one for n in range(of.microbatches - ahead) for one in (("F", rank, n + ahead), ("B", rank, n))]
        rest = [("B", rank, n) for n in range(of.microbatches - ahead, of.microbatches)]
        found[rank] = [("F", rank, n) for n in range(ahead)] + turns + rest
    return found


def needs(kind: str, stage: int, microbatch: int, stages: int) -> list[tuple[str, int, int]]:
    if kind == "F":
        return [("F", stage - 1, microbatch)] * (stage > 0)
    if kind == "W":
        return [("I", stage, microbatch)]
    return [("F", stage, microbatch)] + [(kind, stage + 1, microbatch)] * (stage < stages - 1)


def played(of: ParallelPlan, left: dict[int, list[tuple[str, int, int]]]) -> float:
    """What the busiest rank waits over what it works, if everybody begins as soon as its input is there."""
    ready: dict[tuple[str, int, int], float] = {}
    clock = dict.fromkeys(range(of.pipeline), 0.0)
    work = {rank: sum(UNITS[kind] for kind, _, _ in actions) for rank, actions in left.items()}
    while any(left.values()):
        before = len(ready)
        for rank, actions in left.items():
            while actions and all(need in ready for need in needs(*actions[0], of.stages)):
                one = actions.pop(0)
                begin = max([clock[rank], *(ready[need] for need in needs(*one, of.stages))])
                clock[rank] = ready[one] = begin + UNITS[one[0]]
        assert len(ready) > before, "the order waits for itself"
    return max(clock.values()) / max(work.values()) - 1


@pytest.mark.parametrize(("pipeline", "virtual", "microbatches"), [(4, 2, 8), (4, 4, 16), (8, 2, 16), (12, 8, 36)])
@pytest.mark.parametrize("schedule", ["interleaved", "zero_bubble"])
def test_virtual_stages_wait_as_long_as_torchs_order_makes_them(pipeline, virtual, microbatches, schedule):
    one = plan(pipeline, virtual, microbatches, schedule)
    assert wait_ratio(one) == pytest.approx(played(one, order(one)))


@pytest.mark.parametrize(("pipeline", "microbatches"), [(2, 2), (4, 8), (8, 32)])
def test_one_stage_each_waits_as_long_as_its_order_makes_it(pipeline, microbatches):
    one = plan(pipeline, 1, microbatches, "1f1b")
    assert wait_ratio(one) == pytest.approx(played(one, one_by_one(one)))
