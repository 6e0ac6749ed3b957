"""Tests that multistep samplers agree with diffusers' schedulers at the same noise levels, where installed."""

import pytest
import torch

from nemo_vfm.diffusion.dpm_solver import DPM2M
from nemo_vfm.diffusion.exponential import RES2AB
from nemo_vfm.diffusion.objective import EDM, FlowMatching
from nemo_vfm.diffusion.unipc import UniPC
from tests.support.mixture import Mixture

SIZE = (1, 1, 1)

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of diffusers


def levels(flow, steps):
    """Down to 0; from 0.99, since at 1 diffusers nudges the level itself where we nudge its logarithm."""
    return FlowMatching(shift=3.0).schedule(steps, SIZE) * 0.99 if flow else EDM().schedule(steps, SIZE)


def theirs(scheduler, sigmas, flow):
    """The end of diffusers' loop. Its path without flow is ours over sqrt(1 + sigma^2)."""
    denoise, size = Mixture(flow=flow), torch.ones_like(sigmas) if flow else (1 + sigmas**2).sqrt()
    scheduler.set_timesteps(len(sigmas) - 1)
    scheduler.sigmas = sigmas
    scheduler.set_begin_index(0)
    x = denoise.at(float(sigmas[0]))[:, None] / size[0]
    for i, t in enumerate(scheduler.timesteps):
        clean = denoise(x * size[i], float(sigmas[i]))
        x = scheduler.step((x - clean) / sigmas[i] if flow else clean, t, x).prev_sample
    return x[:, 0] * size[-1]


def ours(sampler, sigmas, flow):
    denoise = Mixture(flow=flow)
    return sampler.draw(denoise, denoise.at(float(sigmas[0])) / float(sigmas[0]), sigmas).latents


def settings(flow):
    return {"use_flow_sigmas": flow, "prediction_type": "flow_prediction" if flow else "sample"}


@pytest.mark.parametrize("flow", [False, True], ids=["edm", "flow"])
@pytest.mark.parametrize("steps", [4, 16])
@pytest.mark.parametrize(("order", "variant", "ends"), [
    (1, "b2", "at zero"), (2, "b2", "at zero"), (3, "b2", "at zero"), (1, "b1", "above"), (2, "b1", "above"),
    (2, "b2", "above"), (3, "b1", "above"),
])  # fmt: skip
def test_unipc_is_that_of_diffusers(order, variant, ends, steps, flow):
    """At zero, diffusers' bh1 multiplies 0 by infinity in the last step and gives nan: there is nothing to compare."""
    module = pytest.importorskip("diffusers.schedulers.scheduling_unipc_multistep")
    sigmas = levels(flow, steps) if ends == "at zero" else levels(flow, steps + 1)[:-1]
    scheduler = module.UniPCMultistepScheduler(
        solver_order=order,
        solver_type=variant.replace("b", "bh"),
        lower_order_final=ends == "at zero",
        **settings(flow),
    )
    expected = theirs(scheduler, sigmas, flow)
    torch.testing.assert_close(
        ours(UniPC(steps=steps, order=order, variant=variant), sigmas, flow), expected, rtol=1e-9, atol=1e-9
    )


@pytest.mark.parametrize(("flow", "sampler", "solver_type"), [
    (False, DPM2M, "midpoint"), (True, DPM2M, "midpoint"), (False, RES2AB, "heun"),
], ids=["dpm-edm", "dpm-flow", "res-edm"])  # fmt: skip
@pytest.mark.parametrize("steps", [4, 16])
def test_second_order_multistep_is_that_of_diffusers(sampler, solver_type, steps, flow):
    """What diffusers calls heun is the exact integral of a linear D: RES 2AB, where both count steps in ln sigma.

    To single precision, which their scheduler casts to.
    """
    module = pytest.importorskip("diffusers.schedulers.scheduling_dpmsolver_multistep")
    scheduler = module.DPMSolverMultistepScheduler(solver_order=2, solver_type=solver_type, **settings(flow))
    sigmas = levels(flow, steps)
    torch.testing.assert_close(
        ours(sampler(steps=steps), sigmas, flow), theirs(scheduler, sigmas, flow), rtol=1e-6, atol=1e-6
    )
