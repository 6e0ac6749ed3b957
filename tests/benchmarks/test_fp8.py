"""Tests the benchmark of FP8: that its figures meet their bars, and that its second implementation finds a fault."""

import importlib
from pathlib import Path

import pytest
import torch

from tests.support.benchmarks import figures_of
from tests.support.installed import skip_without
from tests.support.repository import ROOT

skip_without("torchao")


@pytest.mark.soak  # four trainings of 60 steps
def test_its_figures_meet_their_bars(tmp_path: Path) -> None:
    found = figures_of("fp8", "--quick", folder=tmp_path)
    assert found["bytes_differing"] == 0 and found["scaled_mm_error"] <= 1e-6
    assert found["loss_gap"] <= 0.005 and found["control_gap"] >= 0.02
    assert found["emulation_over_torchao"] <= 1.5  # 0.77 on a quiet machine


def test_a_last_bit_that_is_wrong_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    tensors = importlib.import_module("low_precision.tensors")
    assert sum(tensors.bytes_differing(3).differing.values()) == 0
    right = tensors.quantise

    def wrong(*arguments, **named):
        found = right(*arguments, **named)
        if found.scale.dtype != torch.float32:
            return found
        return found._replace(scale=torch.nextafter(found.scale, torch.tensor(torch.inf)))

    monkeypatch.setattr(tensors, "quantise", wrong)
    differing = tensors.bytes_differing(3).differing
    assert all(count > 0 for way, count in differing.items() if way[0] not in "dm"), differing
