# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Samplers have the order of convergence they claim, on a problem whose exact solution is known.

Data are N(0, 0.5^2). Then D(x; sigma) = x 0.25 / (0.25 + sigma^2), and x / sqrt(0.25 + sigma^2) is constant along the
equation's solutions.
"""

import math
from itertools import pairwise

import pytest
import torch

from nemo_vfm.diffusion.objective import EDM, FlowMatching
from nemo_vfm.diffusion.sampler import Euler, Heun, Sampler

STD = 0.5
SIZE = (1, 1, 1)


class Gaussian:
    """The exact denoiser, which counts its calls."""

    def __init__(self):
        self.calls = 0

    def __call__(self, x, sigma):
        self.calls += 1
        return x * STD**2 / (STD**2 + sigma**2)


def relative_error(sampler, sigmas):
    first, last = float(sigmas[0]), float(sigmas[-1])
    drawn = sampler.draw(Gaussian(), torch.ones(1), sigmas)
    exact = first * math.hypot(STD, last) / math.hypot(STD, first)
    return abs(float(drawn.latents) - exact) / exact


@pytest.mark.parametrize(("sampler", "steps", "error"), [
    (Euler, 10, 0.270), (Euler, 35, 0.0802), (Euler, 70, 0.0404),
    (Heun, 10, 0.220), (Heun, 35, 0.0130), (Heun, 70, 0.0030),
])  # fmt: skip
def test_errors_on_karras_schedule_are_those_of_the_literature_check(sampler, steps, error):
    measured = relative_error(sampler(steps=steps), EDM().schedule(steps, SIZE))
    assert measured == pytest.approx(error, rel=0.02 if error > 0.01 else 0.05)


@pytest.mark.parametrize(("sampler", "order"), [(Euler, 1), (Heun, 2)])
def test_halving_the_steps_divides_the_error_by_two_to_the_order(sampler, order):
    errors = [relative_error(sampler(), torch.logspace(1, -1, steps + 1).double()) for steps in (64, 128, 256)]
    slopes = [math.log2(coarse / fine) for coarse, fine in pairwise(errors)]
    assert slopes == pytest.approx([order, order], abs=0.06)


@pytest.mark.parametrize(("sampler", "order"), [(Euler, 1), (Heun, 2)])
def test_the_order_holds_on_the_path_of_flow_matching(sampler, order):
    """There D(x; s) = (1 - s) v x / ((1 - s)^2 v + s^2) for data of variance v."""

    def denoise(x, s):
        return (1 - s) * STD**2 * x / ((1 - s) ** 2 * STD**2 + s**2)

    errors = []
    for steps in (32, 64, 128):
        sigmas = FlowMatching(shift=2.0).schedule(steps, SIZE)
        errors.append(abs(float(sampler(steps=steps).draw(denoise, torch.ones(1), sigmas).latents) - STD) / STD)
    slopes = [math.log2(coarse / fine) for coarse, fine in pairwise(errors)]
    assert slopes == pytest.approx([order, order], abs=0.2)


@pytest.mark.parametrize(("sampler", "evaluations"), [(Euler, 7), (Heun, 13)])
def test_the_reported_number_of_evaluations_is_the_number_of_calls(sampler, evaluations):
    denoise = Gaussian()
    assert isinstance(sampler(steps=7), Sampler)
    drawn = sampler(steps=7).draw(denoise, torch.ones(2, 3), EDM().schedule(7, SIZE))
    assert drawn.evaluations == denoise.calls == evaluations


def test_one_step_of_euler_jumps_to_the_estimate():
    drawn = Euler(steps=1).draw(Gaussian(), torch.ones(1), [2.0, 0.0])
    torch.testing.assert_close(drawn.latents, torch.tensor([2.0 * 0.25 / 4.25]).double())


def test_zero_steps_are_refused():
    with pytest.raises(ValueError, match="steps must be at least 1, got 0"):
        Heun(steps=0)
