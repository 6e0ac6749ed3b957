"""Tests that samplers have their order of convergence, on problems with known exact solutions.

Data are N(0, 0.5^2). Then D(x; sigma) = x 0.25 / (0.25 + sigma^2), and x / sqrt(0.25 + sigma^2) is constant along the
equation's solutions. Or they are a mixture of three Gaussians, where D is not linear in x (tests/support/mixture.py).
"""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch

from nemo_vfm.diffusion.dpm_solver import DPM2M, half_log_snr
from nemo_vfm.diffusion.exponential import RES2AB, RES2Mid, phi
from nemo_vfm.diffusion.objective import EDM, FlowMatching
from nemo_vfm.diffusion.sampler import Euler, Heun, Sampler
from nemo_vfm.diffusion.unipc import UniPC
from tests.support.mixture import Mixture

STD = 0.5
SIZE = (1, 1, 1)


class Gaussian:
    """The exact denoiser, which counts its calls."""

    def __init__(self):
        self.calls = 0

    def scale(self, sigma):
        return 1.0

    def __call__(self, x, sigma):
        self.calls += 1
        return x * STD**2 / (STD**2 + sigma**2)


@pytest.mark.parametrize(("sampler", "steps", "error"), [
    (Euler, 10, 0.270), (Euler, 35, 0.0802), (Euler, 70, 0.0404),
    (Heun, 10, 0.220), (Heun, 35, 0.0130), (Heun, 70, 0.0030),
])  # fmt: skip
def test_errors_on_karras_schedule_are_those_of_the_literature_check(sampler, steps, error):
    sigmas = EDM().schedule(steps, SIZE)
    drawn = sampler(steps=steps).draw(Gaussian(), torch.ones(1), sigmas)
    exact = float(sigmas[0]) * math.hypot(STD, float(sigmas[-1])) / math.hypot(STD, float(sigmas[0]))
    assert abs(float(drawn.latents) - exact) / exact == pytest.approx(error, rel=0.02 if error > 0.01 else 0.05)


def error(sampler, sigmas, *, flow):
    """The largest over five solutions through the mixture."""
    denoise = Mixture(flow=flow)
    drawn = sampler.draw(denoise, denoise.at(float(sigmas[0])) / float(sigmas[0]), sigmas)
    return float((drawn.latents - denoise.at(float(sigmas[-1]))).abs().max())


def slopes(errors):
    return [math.log2(coarse / fine) for coarse, fine in pairwise(errors)]


ORDERS = [
    (Euler(), 1), (Heun(), 2), (RES2AB(), 2), (RES2Mid(), 2), (DPM2M(), 2), (UniPC(order=1), 2), (UniPC(order=2), 3),
    (UniPC(order=2, variant="b1"), 3), (UniPC(order=3), 4),
]  # fmt: skip
NAMES = ["euler", "heun", "res-2ab", "res-2mid", "dpm-2m", "unipc-1", "unipc-2", "unipc-2-b1", "unipc-3"]


@pytest.mark.parametrize(("sampler", "order"), ORDERS, ids=NAMES)
@pytest.mark.parametrize("flow", [False, True], ids=["edm", "flow"])
@pytest.mark.slow
def test_halving_the_steps_divides_the_error_by_two_to_the_order(sampler, order, flow):
    """Between two noise levels; UniPC's corrector raises the order of its predictor by one."""
    levels = [
        torch.linspace(0.95, 0.05, n + 1).double() if flow else torch.logspace(1, -1, n + 1, dtype=torch.float64)
        for n in (64, 128, 256)
    ]
    assert slopes([error(sampler, sigmas, flow=flow) for sigmas in levels]) == pytest.approx(
        [order, order], abs=0.3 if order == 4 else 0.13
    )


@pytest.mark.parametrize("sampler", [sampler for sampler, _ in ORDERS[1:]], ids=NAMES[1:])
@pytest.mark.parametrize("flow", [False, True], ids=["edm", "flow"])
@pytest.mark.slow
def test_from_pure_noise_to_zero_the_order_is_two(sampler, flow):
    """First and last steps are of low order, which binds all to two in the end; flow matching loses a log more."""
    objective = FlowMatching(shift=1.0) if flow else EDM()
    errors = [error(sampler, objective.schedule(n, SIZE), flow=flow) for n in (18, 288)]
    assert slopes(errors)[0] / 4 > 1.7


def test_a_step_is_worth_more_the_more_it_knows():
    """Of 36 evaluations on the schedule of EDM."""
    evaluations = {"euler": Euler, "res-2ab": RES2AB, "dpm-2m": DPM2M, "unipc-2": UniPC}
    euler, res, dpm, unipc = (error(kind(), EDM().schedule(36, SIZE), flow=False) for kind in evaluations.values())
    assert unipc < dpm / 3 < res / 3 < euler / 9


@pytest.mark.parametrize("order", [1, 2, 3, 4])
@pytest.mark.parametrize("h", [1e-6, 0.01, 0.999, 1.001, 8.0])
def test_phi_is_its_integral(order, h):
    nodes, weights = (torch.from_numpy(x) for x in np.polynomial.legendre.leggauss(40))
    u = (nodes + 1) / 2
    integral = (weights / 2 * torch.exp(-(1 - u) * h) * u ** (order - 1) / math.factorial(order - 1)).sum()
    assert phi(order, h) == pytest.approx(float(integral), rel=1e-12)


@pytest.mark.parametrize("sampler", [RES2AB(steps=3), RES2Mid(steps=3)])
def test_an_estimate_that_moves_evenly_in_ln_sigma_is_integrated_without_error(sampler):
    """D = -ln sigma: the solution of dx/dl = l - x is l - 1 + c e^-l. From the second step on for two-step rules."""

    class Even(Gaussian):
        def __call__(self, x, sigma):
            return torch.full_like(x, -math.log(sigma))

    levels = [math.exp(-t) for t in (0.0, 0.3, 1.0, 3.0)]
    first = math.exp(-0.3) * 1.0 + 0.0 if isinstance(sampler, RES2AB) else None  # one Euler step: D = 0
    x = float(sampler.draw(Even(), torch.ones(1), levels).latents)
    start, value = (0.3, first) if first is not None else (0.0, 1.0)
    c = (value - (start - 1)) * math.exp(start)
    assert x == pytest.approx(3.0 - 1 + c * math.exp(-3.0), rel=1e-12)


@pytest.mark.parametrize("levels", [[10.0, 2.0, 0.1], [1.0, 0.9, 0.3]])
def test_a_step_of_res_2ab_integrates_the_line_through_its_last_two_estimates(levels):
    """Long steps, too: where it is worse than Euler, the line is wrong for the problem, and not the sum of it."""
    denoise, noise = Mixture(flow=False), torch.tensor([0.7], dtype=torch.float64)
    first, second, third = levels
    before = denoise(first * noise, first)
    x = float(second / first * first * noise + (1 - second / first) * before)
    now = float(denoise(torch.tensor([x], dtype=torch.float64), second))
    h, h_before = math.log(second / third), math.log(first / second)
    nodes, weights = np.polynomial.legendre.leggauss(40)
    t = (nodes + 1) / 2 * h
    line = now + t * (now - float(before)) / h_before
    expected = math.exp(-h) * x + float((weights / 2 * h * np.exp(-(h - t)) * line).sum())
    assert float(RES2AB().draw(denoise, noise, levels).latents) == pytest.approx(expected, rel=1e-12)


def test_pure_noise_of_flow_matching_has_a_finite_logarithm_and_zero_noise_an_infinite_one():
    flow = Mixture(flow=True)
    assert half_log_snr(flow, 1.0) == pytest.approx(math.log(1e-6)) and half_log_snr(flow, 0.0) == math.inf
    assert half_log_snr(flow, 0.2) == pytest.approx(math.log(4.0)) and half_log_snr(
        Mixture(flow=False), 0.2
    ) == -math.log(0.2)


@pytest.mark.parametrize(("sampler", "evaluations"), [
    (Euler, 7), (Heun, 13), (RES2AB, 7), (RES2Mid, 13), (DPM2M, 7), (UniPC, 7),
])  # fmt: skip
@pytest.mark.parametrize("flow", [False, True], ids=["edm", "flow"])
def test_the_reported_number_of_evaluations_is_the_number_of_calls(sampler, evaluations, flow):
    denoise, objective = Mixture(flow=flow), FlowMatching() if flow else EDM()
    assert isinstance(sampler(steps=7), Sampler) and sampler(steps=7).num_steps() == 7
    drawn = sampler(steps=7).draw(denoise, torch.ones(2, 3), objective.schedule(7, SIZE))
    assert drawn.evaluations == denoise.calls == evaluations
    assert drawn.latents.dtype == torch.float64 and drawn.latents.isfinite().all()


@pytest.mark.parametrize("sampler", [Euler, Heun, RES2AB, RES2Mid, DPM2M, UniPC])
@pytest.mark.parametrize("flow", [False, True], ids=["edm", "flow"])
def test_one_step_to_zero_jumps_to_the_estimate(sampler, flow):
    denoise, top = Mixture(flow=flow), 1.0 if flow else 2.0
    drawn = sampler(steps=1).draw(denoise, torch.full((1,), 0.7), [top, 0.0])
    torch.testing.assert_close(drawn.latents, denoise(torch.full((1,), 0.7 * top).double(), top), rtol=1e-6, atol=0)


@pytest.mark.parametrize("sampler", [Euler, Heun, RES2AB, RES2Mid, DPM2M, UniPC])
def test_zero_steps_are_refused(sampler):
    with pytest.raises(ValueError, match="steps must be at least 1, got 0"):
        sampler(steps=0)


@pytest.mark.parametrize("changes", [{"order": 4}, {"order": 0}, {"variant": "b3"}])
def test_an_order_or_variant_that_unipc_has_not_is_refused(changes):
    with pytest.raises(ValueError, match=f"got '?{next(iter(changes.values()))}"):
        UniPC(**changes)
