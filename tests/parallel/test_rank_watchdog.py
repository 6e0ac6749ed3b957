"""Tests that rank 0 tells which rank reads longest and which is elsewhere."""

import time
from collections.abc import Callable

import pytest

from nemo_vfm.parallel.ranks import rank_watchdog
from nemo_vfm.parallel.ranks.rank_watchdog import READS, RankWatch


class Together:
    def __init__(self) -> None:
        self.held: dict[str, bytes] = {}

    def set(self, name: str, value: str) -> None:
        self.held[name] = value.encode()

    def get(self, name: str) -> bytes:
        return self.held[name]

    def check(self, names: list[str]) -> bool:
        return all(name in self.held for name in names)


def until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < end, "timed out waiting"
        time.sleep(0.02)


def test_rank_0_tells_who_reads_longest_and_who_is_elsewhere(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rank_watchdog, "BEAT_S", 0.05)
    store = Together()
    first, second = (RankWatch(store, rank, 2, on_lost=lambda sentence: None) for rank in (0, 1))
    for one in (first, second):
        one.start()
    first.at(f"{READS} of step 3")
    first.at("takes step 3")
    began = time.monotonic()
    second.at(f"{READS} of step 3")
    time.sleep(0.3)
    second.at("takes step 3")
    took_s = time.monotonic() - began  # a busy machine sleeps longer than it was told to
    until(lambda: first.facts()["reads_longest"]["rank"] == 1)
    told = first.facts()
    assert 0.03 <= told["reads_longest"]["seconds"] <= took_s / 10 + 1e-6  # a tenth of what it read just now, rounded
    assert (told["ranks"], told["elsewhere"]) == (2, {}) and "computes_slowest" not in told
    first.computes(0.003)
    assert "computes_slowest" not in first.facts(), "one rank alone is neither quick nor slow"
    second.computes(0.002)
    second.computes(0.002 + 0.002 / 0.3)  # a moving mean
    until(lambda: "computes_slowest" in first.facts())
    assert first.facts()["computes_slowest"] == {"rank": 1, "seconds": 0.004, "times": 1.333}
    second.at("is in on_step of Slow after step 3")
    until(lambda: first.facts()["elsewhere"] == {"1": "is in on_step of Slow after step 3"})
    for one in (second, first):
        one.stop()
