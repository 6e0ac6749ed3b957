"""Tests objectives against their closed forms."""

import math

import numpy as np
import pytest
import torch

from nemo_vfm.diffusion.objective import EDM, FlowMatching, Objective

OBJECTIVES = [FlowMatching(shift=3.0), FlowMatching(prediction="sample"), EDM()]
IDS = ["velocity", "sample", "edm"]
SIZE = (4, 16, 16)


def gaussian(batch=3):
    torch.manual_seed(0)
    return torch.randn(batch, 2, 1, 4, 4), torch.randn(batch, 2, 1, 4, 4), torch.tensor([0.1, 0.5, 0.9])[:batch]


def perfect_output(objective, clean, noise, sigma_B):
    """What the network would have to say for `denoise` to be `clean`, found from the definition alone."""
    sigma = sigma_B.reshape(-1, 1, 1, 1, 1)
    if isinstance(objective, EDM):
        d, noisy = objective.sigma_data, clean + sigma * noise
        skip, out = d**2 / (sigma**2 + d**2), sigma * d / (sigma**2 + d**2).sqrt()
        return (clean - skip * noisy) / out
    return clean if objective.prediction == "sample" else noise - clean


@pytest.mark.parametrize("objective", OBJECTIVES, ids=IDS)
def test_a_perfect_network_has_no_loss_and_denoises_to_the_clean_latents(objective):
    clean, noise, sigma_B = gaussian()
    output = perfect_output(objective, clean, noise, sigma_B)
    torch.testing.assert_close(objective.losses(output, clean, noise, sigma_B), torch.zeros(3), atol=1e-6, rtol=0)
    noisy = objective.add_noise(clean, noise, sigma_B)
    torch.testing.assert_close(objective.denoise(output, noisy, sigma_B), clean, atol=1e-5, rtol=0)
    assert objective.losses(output + 0.1, clean, noise, sigma_B).min() > 0.005


@pytest.mark.parametrize("objective", OBJECTIVES, ids=IDS)
def test_the_path_and_the_denoiser_agree_on_the_slope(objective):
    """d noised / d sigma = (noised - clean) / sigma, which every sampler relies on."""
    clean, noise, sigma_B = (x.double() for x in gaussian())
    step = 1e-6
    slope = (objective.add_noise(clean, noise, sigma_B + step) - objective.add_noise(clean, noise, sigma_B - step)) / (
        2 * step
    )
    expected = (objective.add_noise(clean, noise, sigma_B) - clean) / sigma_B.reshape(-1, 1, 1, 1, 1)
    torch.testing.assert_close(slope, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("prediction", ["velocity", "sample"])
def test_the_weight_of_noisy_samples_grows_with_their_level(prediction):
    clean, noise, sigma_B = gaussian()
    plain, weighted = (
        FlowMatching(prediction=prediction, noise_weight=w).losses(noise, clean, noise, sigma_B) for w in (0, 3)
    )
    torch.testing.assert_close(weighted, plain * (1 + 3 * sigma_B))


def test_the_loss_of_a_predicted_sample_is_the_loss_of_the_velocity_it_implies():
    clean, noise, sigma_B = gaussian()
    sample, sigma = torch.randn_like(clean), sigma_B.reshape(-1, 1, 1, 1, 1)
    velocity = (FlowMatching().add_noise(clean, noise, sigma_B) - sample) / sigma
    torch.testing.assert_close(
        FlowMatching(prediction="sample").losses(sample, clean, noise, sigma_B),
        FlowMatching().losses(velocity, clean, noise, sigma_B),
        rtol=1e-4, atol=1e-5,
    )  # fmt: skip


def test_the_loss_of_a_predicted_sample_stays_bounded_where_the_noise_vanishes():
    clean, noise, _ = gaussian()
    loss = FlowMatching(prediction="sample", min_sigma=0.05).losses(clean + 0.1, clean, noise, torch.tensor([0.0] * 3))
    torch.testing.assert_close(loss, torch.full((3,), (0.1 / 0.05) ** 2), rtol=1e-4, atol=0)


def test_edm_shows_the_network_unit_variance_and_asks_unit_variance_of_it_at_every_noise_level():
    torch.manual_seed(0)
    objective = EDM(sigma_data=0.5)
    clean, noise = 0.5 * torch.randn(5, 1, 1, 200, 200), torch.randn(5, 1, 1, 200, 200)
    sigma_B = torch.tensor([0.002, 0.1, 0.5, 5.0, 80.0])
    shown, _ = objective.inputs(objective.add_noise(clean, noise, sigma_B), sigma_B)
    asked = perfect_output(objective, clean, noise, sigma_B)
    torch.testing.assert_close(shown.flatten(1).std(1), torch.ones(5), rtol=0.02, atol=0)
    torch.testing.assert_close(asked.flatten(1).std(1), torch.ones(5), rtol=0.02, atol=0)
    losses = objective.losses(torch.zeros_like(clean), clean, noise, sigma_B)
    torch.testing.assert_close(losses, torch.ones(5), rtol=0.03, atol=0)


def test_edm_tells_the_network_a_quarter_of_the_logarithm():
    _, noise_B = EDM().inputs(torch.zeros(2, 1, 1, 1, 1), torch.tensor([1.0, math.e]))
    torch.testing.assert_close(noise_B, torch.tensor([0.0, 0.25]))


def test_noise_levels_follow_their_distributions():
    numbers = torch.Generator().manual_seed(0)
    edm = torch.stack([EDM(p_mean=-1.0, p_std=2.0).draw(numbers, SIZE) for _ in range(3000)]).log()
    assert abs(edm.mean() + 1.0) < 0.15 and abs(edm.std() - 2.0) < 0.12
    flow = FlowMatching(shift=3.0, logit_mean=0.5, logit_std=1.5, uniform_fraction=0.0)
    sigma = torch.stack([flow.draw(numbers, SIZE) for _ in range(3000)])
    logit = torch.logit(sigma / (3.0 - 2.0 * sigma))  # the shift undone
    assert abs(logit.mean() - 0.5) < 0.12 and abs(logit.std() - 1.5) < 0.1


def test_the_uniform_share_fills_the_ends():
    numbers = torch.Generator().manual_seed(0)
    narrow, mixed = (
        torch.stack([FlowMatching(logit_std=0.3, uniform_fraction=share).draw(numbers, SIZE) for _ in range(2000)])
        for share in (0.0, 0.5)
    )
    assert (narrow < 0.1).float().mean() == 0
    assert abs((mixed < 0.1).float().mean() - 0.05) < 0.02


def test_schedules_run_from_pure_noise_to_zero():
    edm = EDM().schedule(35, SIZE)
    assert len(edm) == 36 and edm[-1] == 0 and edm.dtype == torch.float64
    torch.testing.assert_close(edm[[0, -2]], torch.tensor([80.0, 0.002], dtype=torch.float64))
    roots = edm[:-1] ** (1 / 7)
    torch.testing.assert_close(roots.diff(), roots.diff()[:1].expand(34), rtol=1e-9, atol=1e-12)
    flow = FlowMatching(shift=3.0).schedule(4, SIZE)
    torch.testing.assert_close(flow, torch.tensor([1, 0.9, 0.75, 0.5, 0], dtype=torch.float64))


@pytest.mark.parametrize(("rho", "low", "high"), [(7.0, 0.002, 80.0), (3.0, 0.01, 50.0), (1.0, 0.1, 10.0)])
def test_edm_schedules_are_equation_5_of_karras_for_every_rho(rho, low, high):
    i, n = np.arange(11), 11
    expected = (high ** (1 / rho) + i / (n - 1) * (low ** (1 / rho) - high ** (1 / rho))) ** rho
    found = EDM(sigma_min=low, sigma_max=high, rho=rho).schedule(n, SIZE)
    np.testing.assert_allclose(found.numpy(), [*expected, 0.0], rtol=1e-12)


@pytest.mark.parametrize("objective", OBJECTIVES, ids=IDS)
def test_fractions_of_noise_lie_in_order_between_zero_and_one(objective):
    assert isinstance(objective, Objective)
    fractions = objective.fraction(objective.schedule(9, SIZE).float())
    assert (fractions.diff() < 0).all() and fractions.min() == 0 and fractions.max() <= 1


@pytest.mark.parametrize(("kind", "changes"), [
    (FlowMatching, {"shift": 0.0}), (FlowMatching, {"prediction": "noise"}), (FlowMatching, {"uniform_fraction": 1.1}),
    (FlowMatching, {"min_sigma": 0.0}), (EDM, {"sigma_data": 0.0}), (EDM, {"sigma_min": 90.0}),
])  # fmt: skip
def test_settings_outside_their_range_are_refused(kind, changes):
    with pytest.raises(ValueError, match=str(next(iter(changes.values())))):
        kind(**changes)


def test_a_schedule_needs_a_step():
    with pytest.raises(ValueError, match="at least 1 step, got 0"):
        EDM().schedule(0, SIZE)


def test_levels_outside_the_drawn_range_are_never_trained_and_those_within_stay_as_likely() -> None:
    def levels(objective: FlowMatching) -> torch.Tensor:
        generator = torch.Generator().manual_seed(0)
        return torch.stack([objective.draw(generator, (1, 2, 2)) for _ in range(2000)])

    every, high = levels(FlowMatching(shift=3.0)), levels(FlowMatching(shift=3.0, drawn=(0.875, 1.0)))
    assert high.min() >= 0.875 > every.min()
    assert abs(high.mean() - every[every >= 0.875].mean()) < 0.005
    with pytest.raises(ValueError, match="give a lower and a higher noise level"):
        FlowMatching(drawn=(0.9, 0.8))
