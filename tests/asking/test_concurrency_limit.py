"""Tests that the limit comes to what a simulated server serves, and that refusals do not stop all."""

import math
import statistics

import pytest

from nemo_vfm.asking.pace import ConcurrencyLimit
from tests.support.simulated_server import SimulatedServer

K = 32


def new_limit(start=8, most=256, max_wait_s=60.0):
    return ConcurrencyLimit(start=start, most=most, max_wait_s=max_wait_s)


def settled(server, limit, answers=3000):
    """Mean limit over the second half of so many answers."""
    server.run(limit, answers)
    return statistics.mean(server.limits[answers // 2 :])


@pytest.mark.parametrize("refuses", [True, False])
def test_the_limit_comes_near_the_number_of_places_whether_the_server_refuses_or_queues(refuses):
    found = [settled(SimulatedServer(places=K, refuses=refuses, seed=seed), new_limit()) for seed in range(5)]
    assert 0.95 * K <= statistics.median(found) <= 1.3 * K and max(found) < 2 * K


@pytest.mark.parametrize("refuses", [True, False])
def test_a_server_of_few_places_is_not_asked_until_all_time_out(refuses):
    server = SimulatedServer(places=4, refuses=refuses, timeout_s=2.5)
    server.run(new_limit(start=64), 3000)
    assert server.timed_out < 300
    assert statistics.mean(server.limits[1500:]) < 24  # beyond it all would time out: 24 / 4 * 0.3 s = 1.8 s


def test_nearly_all_throughput_is_used_from_the_first_seconds_on():
    for refuses in (True, False):
        server = SimulatedServer(places=K, refuses=refuses, retry_after_s=1.0, seed=7)
        server.run(new_limit(), 2000)
        ideal_s = 2000 * 0.25 * math.exp(0.6**2 / 2) / K
        assert server.now_s < 1.12 * ideal_s


def test_a_server_that_gets_slower_with_each_request_and_still_gains_is_given_many():
    server = SimulatedServer(places=10_000, slowdown=1 / 32, seed=3)
    limit = settled(server, new_limit(), 12_000)
    # Of latency a (1 + N / 32), N requests get the share N / (N + 32) of the highest throughput.
    assert limit / (limit + 32) > 0.6, "taking any latency above that of few requests for a queue would stop at 8"


def test_longer_answers_are_not_taken_for_a_queue():
    server = SimulatedServer(places=K, seed=5)
    limit = new_limit()
    server.run(limit, 2000)
    server.service_s = lambda rng: 4 * rng.lognormvariate(math.log(0.25), 0.6)
    server.run(limit, 3000)
    assert statistics.mean(server.limits[3000:]) > 0.9 * K


@pytest.mark.parametrize("refuses", [True, False])
def test_more_places_are_found(refuses):
    server, limit = SimulatedServer(places=8, refuses=refuses, seed=2), new_limit()
    server.run(limit, 1500)
    server.places = 64
    server.run(limit, 6000)
    assert statistics.mean(server.limits[-1000:]) > 50


def test_refusals_are_rare_once_the_number_of_places_is_known():
    server, limit = SimulatedServer(places=K, refuses=True, retry_after_s=1.0), new_limit()
    server.run(limit, 500)
    before = server.refused
    server.run(limit, 4000)
    assert server.refused - before < 60


def refuse(limit, now_s, retry_after_s=None):
    ticket = limit.send(now_s)
    assert ticket is not None
    return limit.record_refusal(ticket, now_s + 0.01, retry_after_s)


@pytest.mark.parametrize(
    ("requested", "waited"),
    [(3.0, 3.0), (86400.0, 60.0), (1e300, 60.0), (-5.0, 0.0), (math.nan, 0.25), (math.inf, 60.0), (None, 0.25)],
)
def test_retry_after_is_honoured_and_capped(requested, waited):
    assert refuse(new_limit(), 0.0, requested) == waited


def test_the_first_refusals_hold_back_nobody_else():
    limit = new_limit()
    first = [limit.send(0.0) for _ in range(8)]
    for ticket in first[:4]:
        limit.record_refusal(ticket, 0.01, 5.0)
    assert limit.limit == limit.in_flight == 4
    limit.record_answer(first[4], 0.1)
    assert limit.wait_s(0.1) == 0, "a place is free, and the service takes requests"


def test_a_refusal_of_what_was_sent_after_a_cut_holds_back_all():
    limit = new_limit()
    for ticket in [limit.send(0.0) for _ in range(8)]:
        limit.record_refusal(ticket, 0.01, 5.0)
    assert limit.wait_s(0.1) == 0
    refuse(limit, 0.1, 5.0)
    assert limit.wait_s(0.2) == pytest.approx(0.11 + 5.0 - 0.2) and limit.send(0.2) is None


def test_waits_grow_while_there_are_nothing_but_refusals_and_so_does_what_patience_is_measured_by():
    limit, now_s, waits = new_limit(), 0.0, []
    for _ in range(12):
        waits.append(refuse(limit, now_s))
        now_s += waits[-1] + 0.02
    assert waits == [min(60.0, 0.25 * 2.0**number) for number in range(12)]
    assert limit.refused_for_s(now_s) == pytest.approx(now_s - 0.01) and limit.limit == 1
    limit.record_failure(limit.send(now_s + 60))
    assert limit.refused_for_s(now_s + 61) == 0, "a request that was taken ends the series"


def test_one_burst_of_refusals_at_max_halves_the_limit():
    limit = new_limit(start=64)
    for ticket in [limit.send(0.0) for _ in range(64)]:
        limit.record_refusal(ticket, 0.01, 1.0)
    assert limit.limit == 32


def test_mostly_time_outs_halve_the_limit_but_not_below_eight():
    limit, found = new_limit(start=64), []
    for _ in range(200):
        limit.timed_out(limit.send(0.0))
        found.append(limit.limit)
    assert list(dict.fromkeys(found)) == [64, 32, 16, 8]


def test_a_few_time_outs_do_not_change_the_limit():
    limit = new_limit(start=64)
    for _ in range(100):
        limit.timed_out(limit.send(0.0))
        limit.record_answer(limit.send(0.0), 0.2)
    assert limit.limit == 64


def test_many_more_places_at_a_server_that_refuses_are_found_in_growing_steps():
    server, limit = SimulatedServer(places=K, refuses=True, seed=2), new_limit()
    server.run(limit, 500)
    server.places = 256
    server.run(limit, 1500)
    assert limit.limit > 1.5 * K, "one more every four rounds would take 2,500 answers"


def test_few_questions_say_nothing_of_the_limit():
    limit = new_limit()
    for number in range(1000):
        limit.record_answer(limit.send(float(number)), number + 0.2)
    assert limit.limit == 8


def test_the_limit_is_never_exceeded_and_never_more_than_most():
    server, limit = SimulatedServer(places=1000, seed=1), new_limit(most=20)
    server.run(limit, 2000)
    assert max(server.limits) <= 20 and limit.in_flight <= 20
