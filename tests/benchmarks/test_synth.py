"""Tests the benchmark of asking: an asker that is killed loses nothing, and the ideal is that of K places."""

import asyncio
from pathlib import Path

import pytest

from benchmarks.asking.drawn_service import K, Service, ideal_wall_s
from tests.support.benchmarks import figures_of, module_of


def test_the_ideal_keeps_k_rows_under_way():
    service = Service(3)
    seconds = [service.seconds(row) for row in range(400)]
    assert ideal_wall_s(service, 1) == seconds[0] and ideal_wall_s(service, K) == max(seconds[:K])
    assert sum(seconds) / K <= ideal_wall_s(service, 400) <= sum(seconds) / K + max(seconds)


def test_draws_have_the_shares_that_are_said():
    kinds = [Service(0).draw(row, 0)[0] for row in range(4000)]
    assert kinds.count("500") == pytest.approx(80, abs=30) and kinds.count("hang") == pytest.approx(40, abs=20)


@pytest.mark.slow
def test_rows_survive_a_kill_and_what_was_answered_is_not_paid_for_twice():
    figures = asyncio.run(module_of("synth").kills(200, 1))
    assert (figures["rows_lost"], figures["rows_doubled"]) == (0, 0)
    assert figures["respent_over_in_flight"] <= 1


@pytest.mark.soak
def test_the_quick_benchmark_shows_what_it_is_for(tmp_path: Path):
    figures = figures_of("synth", "--quick", folder=tmp_path)
    assert figures["wall_over_ideal"] < 1.5 and figures["queued_over_ideal"] < 1.5  # the machine may be busy
    assert (figures["rows_lost"], figures["rows_doubled"]) == (0, 0)
    assert figures["respent_over_in_flight"] <= 1
