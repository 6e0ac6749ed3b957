"""Tests what is counted of a step's time and parts."""

from collections.abc import Iterator

from nemo_vfm.curate.execute import inline_executor
from nemo_vfm.curate.execute.work_units import StepThroughput


def test_a_step_is_busy_while_it_is_asked_and_not_while_others_work(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(inline_executor.time, "perf_counter", lambda: now[0])

    def parts() -> Iterator[object]:
        for number in range(3):
            now[0] += 2
            yield number
        now[0] += 1

    took = StepThroughput("step", 1)
    for _ in inline_executor.time_parts(parts(), took, watch=None):
        now[0] += 50
    assert (took.parts, took.busy_s) == (3, 7)
