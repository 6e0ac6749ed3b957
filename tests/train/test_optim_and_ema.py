"""Tests that schedules are pure functions of the step, and that the running average follows its formula."""

import pytest
import torch

from nemo_vfm.train.ema import EMA
from nemo_vfm.train.optim import Constant, WarmupCosine
from tests.support.toy import ToyModel


def test_warm_up_rises_linearly_and_the_cosine_ends_where_asked() -> None:
    schedule = WarmupCosine(warmup_steps=4, final_fraction=0.1)
    factors = [schedule.factor(step, 20) for step in range(20)]
    assert factors[:4] == [0.25, 0.5, 0.75, 1.0]
    assert factors[4] == pytest.approx(1.0)
    assert factors[-1] == pytest.approx(0.1)
    assert factors[4:] == sorted(factors[4:], reverse=True)


def test_a_cosine_without_a_known_end_says_what_to_give() -> None:
    with pytest.raises(ValueError, match="set the cosine's total_steps"):
        WarmupCosine().factor(0, None)


def test_constant_stays_at_one_after_warm_up() -> None:
    assert [Constant(warmup_steps=2).factor(step, None) for step in range(4)] == [0.5, 1.0, 1.0, 1.0]


def test_the_average_follows_its_formula_and_swaps_in_and_out() -> None:
    model, ema = ToyModel(), EMA(decay=0.5)
    ema.start(model)
    start = model.net[0].weight.detach().clone()
    with torch.no_grad():
        model.net[0].weight.add_(1.0)
    ema.update(model, step=100)  # (1 + 100) / (10 + 100) is above 0.5, so the decay is 0.5
    assert torch.allclose(ema.weights["net.0.weight"], start + 0.5)
    with ema.apply_to(model):
        assert torch.allclose(model.net[0].weight, start + 0.5)
    assert torch.allclose(model.net[0].weight, start + 1.0)


def test_early_steps_forget_the_random_start_faster() -> None:
    model, ema = ToyModel(), EMA(decay=0.9999)
    ema.start(model)
    start = model.net[0].weight.detach().clone()
    with torch.no_grad():
        model.net[0].weight.add_(1.0)
    ema.update(model, step=1)
    assert torch.allclose(ema.weights["net.0.weight"], start + 9 / 11)


def test_an_average_of_bf16_moves_by_steps_that_bf16_cannot_hold() -> None:
    model = torch.nn.Linear(2, 2).bfloat16()
    with torch.no_grad():
        model.weight.fill_(0.0)
    ema = EMA(decay=0.999)
    ema.start(model)
    with torch.no_grad():
        model.weight.fill_(1.0)
    for _ in range(1000):
        ema.update(model, step=10**6)
    assert float(ema.weights["weight"].mean()) == pytest.approx(1 - 0.999**1000, rel=1e-3)
    with ema.apply_to(model):
        assert model.weight.dtype == torch.bfloat16
        assert float(model.weight.mean()) == pytest.approx(1 - 0.999**1000, rel=2**-8)
    assert torch.equal(model.weight, torch.ones(2, 2).bfloat16())
    saved = {name: tensor.clone() for name, tensor in ema.weights.items()}
    ema.load(saved)
    assert torch.equal(ema.weights["weight"], saved["weight"])
