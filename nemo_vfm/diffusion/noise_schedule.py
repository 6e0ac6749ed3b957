"""Computes sampling noise levels as diffusers' schedulers do, for models that were tuned with them.

A pipeline without a noise schedule uses the one of its objective.
"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from nemo_vfm.diffusion.objective import Shift, shift_sigma
from nemo_vfm.diffusion.sampler import require_steps

_BELOW_ONE = 1e-6


@runtime_checkable
class NoiseSchedule(Protocol):
    """A schedule of sampling noise levels, in the units of the objective's sigma."""

    def sigmas(self, steps: int, size_THW: Sequence[int]) -> Tensor:
        """Decreasing noise levels for latents of this size, fp64; a sampler steps from each to the next."""

    def first_noise(self, sigmas: Tensor) -> float:
        """The factor that turns unit noise into the initial state."""


class UniPCFlowSigmas:
    """The levels of diffusers' UniPC scheduler with flow sigmas, as Wan uses.

    Levels are equally spaced from 1 to 1 / num_train_timesteps, then shifted. The last is replaced by 0, and the first
    is lowered by 1e-6 so that its logarithm exists. A network with integer timesteps then receives 999, not 1000.

    Args:
        shift: s of sigma' = s sigma / (1 + (s - 1) sigma), or a rule by size. Wan uses 3 for 480p and 5 for 720p.
        num_train_timesteps: the scheduler's setting of that name.
    """

    def __init__(self, *, shift: float | Shift = 3.0, num_train_timesteps: int = 1000) -> None:
        self.shift, self.num_train_timesteps = _require_valid(shift, num_train_timesteps), num_train_timesteps

    def sigmas(self, steps: int, size_THW: Sequence[int]) -> Tensor:
        """See the class; (steps + 1,)."""
        equal = torch.linspace(1, 1 / self.num_train_timesteps, require_steps(steps) + 1, dtype=torch.float64)
        equal[-1] = 0
        return shift_sigma(equal, self.shift, size_THW).clamp(max=1 - _BELOW_ONE)

    def first_noise(self, sigmas: Tensor) -> float:
        return float(sigmas[0])


class FlowMatchEulerSigmas:
    """The levels of diffusers' FlowMatchEuler scheduler, which shifts twice: the ends, then the levels between them.

    Args:
        shift: see `UniPCFlowSigmas`.
        num_train_timesteps: the scheduler's setting of that name.
    """

    def __init__(self, *, shift: float | Shift = 1.0, num_train_timesteps: int = 1000) -> None:
        self.shift, self.num_train_timesteps = _require_valid(shift, num_train_timesteps), num_train_timesteps

    def sigmas(self, steps: int, size_THW: Sequence[int]) -> Tensor:
        """Equally spaced levels between the shifted ends, shifted again, then 0; (steps + 1,)."""
        ends = torch.tensor([1, 1 / self.num_train_timesteps], dtype=torch.float64)
        high, low = shift_sigma(ends, self.shift, size_THW).tolist()
        between = torch.linspace(high, low, require_steps(steps), dtype=torch.float64)
        return torch.cat([shift_sigma(between, self.shift, size_THW), between.new_zeros(1)])

    def first_noise(self, sigmas: Tensor) -> float:
        return float(sigmas[0])


class KarrasSigmas:
    """Levels equally spaced in sigma^(1/rho) (Karras et al. 2022, equation 5), as every Cosmos uses.

    Args:
        sigma_max: the largest level.
        sigma_min: the smallest above 0.
        rho: larger values spend more steps near sigma_min.
        flow: return sigma / (1 + sigma), the same share of noise on the flow-matching path.
        ends_at_zero: append a level of 0. Cosmos 1 and 2 end at sigma_min, so `steps` levels are one step fewer.
        whole_noise: start from unit noise whatever the first level is, as diffusers' UniPC does.
    """

    def __init__(
        self, *, sigma_max: float = 80.0, sigma_min: float = 0.002, rho: float = 7.0, flow: bool = False,
        ends_at_zero: bool = True, whole_noise: bool = False,
    ) -> None:  # fmt: skip
        if not 0 < sigma_min < sigma_max or rho <= 0:
            raise ValueError(f"sigma_min ({sigma_min}) must lie above 0 and below sigma_max ({sigma_max}), and rho "
                             f"({rho}) above 0")  # fmt: skip
        self.sigma_max, self.sigma_min, self.rho = sigma_max, sigma_min, rho
        self.flow, self.ends_at_zero, self.whole_noise = flow, ends_at_zero, whole_noise

    def sigmas(self, steps: int, size_THW: Sequence[int]) -> Tensor:
        """The same levels for any size; (steps + 1,), or (steps,) without a final 0."""
        ramp = torch.linspace(0, 1, require_steps(steps), dtype=torch.float64)
        low, high = self.sigma_min ** (1 / self.rho), self.sigma_max ** (1 / self.rho)
        levels = (high + ramp * (low - high)) ** self.rho
        levels = levels / (1 + levels) if self.flow else levels
        return torch.cat([levels, ramp.new_zeros(1)]) if self.ends_at_zero else levels

    def first_noise(self, sigmas: Tensor) -> float:
        """The first level, or 1."""
        return 1.0 if self.whole_noise else float(sigmas[0])


def _require_valid(shift: float | Shift, num_train_timesteps: int) -> float | Shift:
    if not isinstance(shift, Shift) and shift <= 0:
        raise ValueError(f"shift must be above 0, got {shift}; 1 shifts nothing")
    if num_train_timesteps < 2:
        raise ValueError(f"num_train_timesteps must be at least 2, got {num_train_timesteps}")
    return shift
