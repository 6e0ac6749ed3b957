"""Tests when a device is probed, what is measured, and that random numbers and memory stay unchanged."""

import time

import pytest
import torch

from nemo_vfm.parallel.ranks import process_group, rank_watchdog
from nemo_vfm.parallel.ranks.rank_watchdog import Heartbeat, RankWatch


def test_it_is_time_once_and_then_after_a_while(monkeypatch: pytest.MonkeyPatch):
    now = [100.0]
    monkeypatch.setattr(rank_watchdog.time, "monotonic", lambda: now[0])
    one = Heartbeat(first_s=10, every_s=60)
    found = []
    for now[0] in (100.0, 109.0, 110.0, 111.0, 169.0, 170.0, 171.0):
        found.append(one.is_due())
    assert found == [False, False, True, False, False, True, False]


def test_it_takes_a_little_time_and_nobodys_random_numbers():
    before, one = torch.get_rng_state(), Heartbeat()
    assert 0 < one.seconds() < 5
    held = one._matrices
    assert one.seconds() > 0 and one._matrices is held
    assert torch.equal(torch.get_rng_state(), before)


def test_a_device_that_others_use_takes_longer(monkeypatch: pytest.MonkeyPatch):
    real = torch.mm

    def disturbed(*operands: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        time.sleep(0.005)
        return real(*operands, out=out)

    monkeypatch.setattr(torch, "mm", disturbed)
    assert Heartbeat().seconds() > 0.005


def test_alone_nothing_is_measured_and_among_others_it_is_told(monkeypatch: pytest.MonkeyPatch):
    process_group.take_pulse()  # alone
    watch = RankWatch(None, 1, 2, on_lost=lambda sentence: None)  # type: ignore[arg-type]
    among = process_group.World(None, watch)  # type: ignore[arg-type]
    among.pulse = Heartbeat(first_s=0)
    monkeypatch.setattr(process_group, "_CURRENT", [among])
    process_group.take_pulse()
    told = watch._pulse_s
    assert told > 0
    process_group.take_pulse()  # not yet again
    assert watch._pulse_s == told
