"""Tests that noise schedules are those of diffusers' schedulers, to the rounding of fp32."""

import pytest
import torch

from nemo_vfm.diffusion.noise_schedule import FlowMatchEulerSigmas, KarrasSigmas, NoiseSchedule, UniPCFlowSigmas
from nemo_vfm.diffusion.objective import FlowMatching
from nemo_vfm.diffusion.shift import SqrtShift

SIZE = (2, 4, 4)
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of diffusers
KARRAS = {"use_karras_sigmas": True, "sigma_max": 200.0, "sigma_min": 0.01}
EDM = {"sigma_max": 80.0, "sigma_min": 0.002}
FLOW = {"prediction_type": "flow_prediction", "use_flow_sigmas": True}
#: Ours, and the scheduler of diffusers.
PAIRS = {
    "wan": (UniPCFlowSigmas(shift=3.0), "UniPCMultistepScheduler", FLOW | {"flow_shift": 3.0}),
    "wan at 720p": (UniPCFlowSigmas(shift=5.0), "UniPCMultistepScheduler", FLOW | {"flow_shift": 5.0}),
    "few timesteps": (UniPCFlowSigmas(num_train_timesteps=20), "UniPCMultistepScheduler",
                      FLOW | {"flow_shift": 3.0, "num_train_timesteps": 20}),
    "few by Euler": (FlowMatchEulerSigmas(shift=2.0, num_train_timesteps=20), "FlowMatchEulerDiscreteScheduler",
                     {"shift": 2.0, "num_train_timesteps": 20}),
    "wan by Euler": (FlowMatchEulerSigmas(shift=3.0), "FlowMatchEulerDiscreteScheduler", {"shift": 3.0}),
    "cosmos 2.5": (KarrasSigmas(sigma_max=200.0, sigma_min=0.01, flow=True), "UniPCMultistepScheduler", FLOW | KARRAS),
    "cosmos 1": (KarrasSigmas(**EDM), "EDMEulerScheduler", EDM | {"sigma_data": 0.5}),
}  # fmt: skip


@pytest.mark.parametrize("steps", [1, 2, 8, 50])
@pytest.mark.parametrize("name", PAIRS)
def test_noise_levels_are_those_of_diffusers(name: str, steps: int) -> None:
    diffusers = pytest.importorskip("diffusers", reason="needs the extra diffusers")
    ours, kind, settings = PAIRS[name]
    scheduler = getattr(diffusers, kind)(**settings)
    scheduler.set_timesteps(steps)
    sigmas = ours.sigmas(steps, SIZE)
    assert isinstance(ours, NoiseSchedule) and sigmas.dtype == torch.float64
    torch.testing.assert_close(sigmas, scheduler.sigmas.double(), rtol=2e-6, atol=1e-9)


def test_a_whole_number_of_time_begins_at_999_as_in_diffusers() -> None:
    diffusers = pytest.importorskip("diffusers", reason="needs the extra diffusers")
    scheduler = diffusers.UniPCMultistepScheduler(**FLOW, flow_shift=3.0)
    scheduler.set_timesteps(8)
    sigma_B = UniPCFlowSigmas(shift=3.0).sigmas(8, SIZE)[:-1]
    _, told = FlowMatching(timesteps=1000).inputs(torch.zeros(8, 1, 1, 1, 1), sigma_B)
    assert (1000 * told).round().long().tolist() == scheduler.timesteps.tolist() and scheduler.timesteps[0] == 999


def test_levels_end_above_zero_or_at_it() -> None:
    above, at = (KarrasSigmas(**EDM, ends_at_zero=zero).sigmas(8, SIZE) for zero in (False, True))
    assert torch.equal(at[:-1], above) and at[-1] == 0 and above[-1] == pytest.approx(0.002)
    assert (above.diff() < 0).all()


def test_the_flow_path_has_the_same_share_of_noise() -> None:
    edm, flow = (KarrasSigmas(**EDM, flow=flow).sigmas(8, SIZE)[:-1] for flow in (False, True))
    torch.testing.assert_close(flow / (1 - flow), edm)


def test_the_first_state_is_the_first_level_or_the_whole_noise() -> None:
    sigmas = torch.tensor([0.9, 0.0])
    assert KarrasSigmas().first_noise(sigmas) == pytest.approx(0.9) == UniPCFlowSigmas().first_noise(sigmas)
    assert KarrasSigmas(whole_noise=True).first_noise(sigmas) == 1


def test_a_shift_by_size_is_asked_about_the_size() -> None:
    rule = SqrtShift(scale=3.0, at_tokens=32)
    by_rule, by_number = (UniPCFlowSigmas(shift=shift).sigmas(4, SIZE) for shift in (rule, rule.factor(SIZE)))
    assert torch.equal(by_rule, by_number)


@pytest.mark.parametrize("make", [
    lambda: UniPCFlowSigmas(shift=0.0), lambda: FlowMatchEulerSigmas(num_train_timesteps=1),
    lambda: KarrasSigmas(sigma_min=2.0, sigma_max=1.0), lambda: KarrasSigmas(rho=0.0),
    lambda: UniPCFlowSigmas().sigmas(0, SIZE),
])  # fmt: skip
def test_impossible_numbers_are_refused(make) -> None:
    with pytest.raises(ValueError, match=r"must|above"):
        make()
