"""Tests that a loss weighted by learned uncertainty is least at u = ln L, and the same on every layout."""

from functools import partial
from typing import Any

import pytest
import torch

from nemo_vfm.core import log
from nemo_vfm.core.seed import generator
from nemo_vfm.core.types.task import ModelInputs
from nemo_vfm.diffusion.objective import EDM, FlowMatching, Objective
from nemo_vfm.diffusion.uncertainty_weighting import UncertaintyWeighted
from nemo_vfm.models.blocks.video_tokens import NoiseUncertainty, with_uncertainty
from nemo_vfm.models.dit import DiT
from nemo_vfm.parallel.plan.plan import ParallelPlan
from tests.support.layouts import Doubling, own, started, tiny
from tests.support.ranks import on_ranks

SHAPE = (3, 2, 2, 4, 4)


def said(latents: torch.Tensor, u_B: torch.Tensor) -> torch.Tensor:
    """An output and u in one."""
    u = u_B.reshape(-1, 1, 1, 1, 1).expand(-1, 1, *latents.shape[2:])
    return torch.cat([latents, u.to(latents)], 1)


def drawn() -> tuple[torch.Tensor, ...]:
    draw = torch.Generator().manual_seed(0)
    output, clean, noise = (torch.randn(SHAPE, generator=draw) for _ in range(3))
    return output, clean, noise, torch.tensor([0.1, 0.5, 2.0])


@pytest.mark.parametrize("objective", [EDM(), FlowMatching()])
def test_the_loss_is_the_objectives_at_u_zero_and_min_where_u_is_its_logarithm(objective):
    weighted, (output, clean, noise, sigma_B) = UncertaintyWeighted(objective=objective), drawn()
    plain = objective.losses(output, clean, noise, sigma_B)
    found = weighted.losses(said(output, torch.zeros(3)), clean, noise, sigma_B)
    torch.testing.assert_close(found, plain)
    u_B = plain.log().requires_grad_()
    least = weighted.losses(said(output, u_B), clean, noise, sigma_B)
    torch.testing.assert_close(least, 1 + plain.log())
    assert torch.autograd.grad(least.sum(), u_B)[0].abs().max() < 1e-5
    for off in (-0.3, 0.3):
        assert (weighted.losses(said(output, u_B + off), clean, noise, sigma_B) > least).all()


def test_all_but_the_loss_is_the_objectives():
    objective, (output, clean, noise, sigma_B) = EDM(), drawn()
    weighted = UncertaintyWeighted(objective=objective)
    assert isinstance(weighted, Objective)
    noisy = objective.add_noise(clean, noise, sigma_B)
    pairs = [
        (weighted.denoise(said(output, sigma_B), noisy, sigma_B), objective.denoise(output, noisy, sigma_B)),
        (weighted.add_noise(clean, noise, sigma_B), noisy),
        (weighted.inputs(noisy, sigma_B)[1], objective.inputs(noisy, sigma_B)[1]),
        (weighted.schedule(5, (1, 2, 2)), objective.schedule(5, (1, 2, 2))),
        (weighted.fraction(sigma_B), objective.fraction(sigma_B)),
        (weighted.draw(generator(1, "x"), (1, 2, 2)), objective.draw(generator(1, "x"), (1, 2, 2))),
    ]
    for found, expected in pairs:
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert weighted.scale(0.3) == objective.scale(0.3)


@pytest.mark.slow  # a training
def test_u_learns_the_logarithm_of_a_loss_that_depends_on_the_noise_level():
    """L(c) = exp(2 cos 3c): what one noise level leaves to be learned is up to 50 times what another does."""
    net = NoiseUncertainty()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
    draw = torch.Generator().manual_seed(0)
    assert not net(torch.rand(4)).any(), "at first every level weighs as the objective says"
    for step in range(400):
        optimizer.param_groups[0]["lr"] = 0.02 * (1 - step / 400)
        noise_B = torch.randn(256, generator=draw) / 4
        loss = torch.exp(2 * torch.cos(3 * noise_B)) * torch.rand(256, generator=draw) * 2  # right in the mean
        u_B = net(noise_B)
        optimizer.zero_grad()
        (loss * torch.exp(-u_B) + u_B).mean().backward()
        optimizer.step()
    levels = torch.linspace(-0.5, 0.5, 9)
    torch.testing.assert_close(net(levels).detach(), 2 * torch.cos(3 * levels), rtol=0, atol=0.15)


def test_u_is_computed_in_fp32_whatever_autocast_says_and_its_waves_are_of_unit_size():
    net, noise_B = NoiseUncertainty(), torch.linspace(-1, 1, 64)
    with torch.no_grad():
        net.weight.normal_(generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert net(noise_B).dtype == torch.float32
        torch.testing.assert_close(net(noise_B), NoiseUncertainty.forward(net, noise_B), rtol=0, atol=0)
    assert net.features(noise_B).square().mean() == pytest.approx(1, abs=0.05)
    torch.testing.assert_close(net(noise_B[None]), net(noise_B)[None])


def test_tokens_carry_the_u_of_their_sample_or_their_own():
    out_BSP = torch.zeros(2, 3, 8)
    by_sample = with_uncertainty(out_BSP, torch.tensor([1.0, 2.0]), channels=2)
    assert by_sample.shape == (2, 3, 12) and by_sample[:, :, 8:].mean((1, 2)).tolist() == [1.0, 2.0]
    by_token = with_uncertainty(out_BSP[:1], torch.tensor([[1.0, 2.0, 3.0]]), channels=2)
    assert by_token[0, :, 8:].mean(1).tolist() == [1.0, 2.0, 3.0] and not by_token[0, :, :8].any()


def test_a_model_and_an_objective_that_do_not_go_together_are_told_how_they_would():
    output, clean, noise, sigma_B = drawn()
    with pytest.raises(ValueError, match=r"2 channels for latents with 2; .* build the model with uncertainty: true"):
        UncertaintyWeighted(objective=EDM()).losses(output, clean, noise, sigma_B)
    for objective in (EDM(), FlowMatching()):
        with pytest.raises(ValueError, match=r"3 channels for latents with 2; .* needs the objective Uncertainty"):
            objective.denoise(said(output, sigma_B), clean, sigma_B)
        with pytest.raises(ValueError, match="3 channels for latents with 2"):
            objective.losses(said(output, sigma_B), clean, noise, sigma_B)


def test_a_loss_below_zero_is_explained(monkeypatch):
    texts: list[str] = []
    monkeypatch.setattr(log, "warn_once", texts.append)
    output, clean, noise, sigma_B = drawn()
    weighted = UncertaintyWeighted(objective=EDM())
    weighted.losses(said(output, torch.zeros(3)), clean, noise, sigma_B)
    assert texts == []
    weighted.losses(said(0 * clean, torch.full((3,), -9.0)), 0 * clean, 0 * noise, sigma_B)  # right, and sure of it
    assert len(texts) == 1 and "fell below zero" in texts[0]


class Weighing(Doubling):
    """Doubles latents, and weighs its errors by u."""

    def losses(self, output: torch.Tensor, prepared: ModelInputs) -> torch.Tensor:
        """L exp(-u) + u of each sample."""
        u_B = output[:, -1].flatten(1).mean(1)
        return super().losses(output[:, :-1], prepared) * torch.exp(-u_B) + u_B


def steps(rank: int, degrees: dict[str, Any]) -> list[float]:
    plan = ParallelPlan(**degrees)
    engine = started(plan, partial(tiny, uncertainty=True), task=Weighing())
    results = [engine.step([own(plan, rank, index)]) for index in range(2)]
    return [number for result in results for number in (result.loss, result.grad_norm)]


@pytest.mark.cluster  # several ranks
@pytest.mark.parametrize("degrees", [
    {"tensor": 2, "sequence": True}, {"context": 2}, {"shard": 2}, {"pipeline": 2, "microbatches": 2},
], ids=str)  # fmt: skip
def test_ranks_that_split_tokens_samples_or_blocks_agree_on_what_u_learns(degrees):
    expected = on_ranks(1, steps, {})[0]
    for found in on_ranks(2, steps, degrees):
        assert found == pytest.approx(expected, rel=1e-5)


def test_a_dit_says_nothing_of_its_uncertainty_at_first_and_one_channel_more_than_it_was_given():
    torch.manual_seed(0)
    model = DiT(in_channels=4, text_dim=16, width=48, depth=1, heads=2, uncertainty=True)
    output = model(
        latents_BCTHW=torch.randn(2, 4, 2, 4, 6), noise_B=torch.rand(2), text_BLD=torch.randn(2, 5, 16),
        text_mask_BL=torch.ones(2, 5).bool(), fps_B=torch.full((2,), 8.0),
    )  # fmt: skip
    assert output.shape == (2, 5, 2, 4, 6) and not output.any()
