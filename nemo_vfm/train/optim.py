"""Computes the factor on the learning rate for a step: schedules as pure functions, so that a resume is exact."""

import math


class Constant:
    """Linear warm-up, then the recipe's learning rate.

    Args:
        warmup_steps: optimizer steps from zero to the full rate.
    """

    def __init__(self, *, warmup_steps: int = 0) -> None:
        if warmup_steps < 0:
            raise ValueError(f"warmup_steps must be at least 0, got {warmup_steps}")
        self.warmup_steps = warmup_steps

    def factor(self, step: int, total_steps: int | None) -> float:
        """min(1, (step + 1) / warmup_steps)."""
        return min(1.0, (step + 1) / max(1, self.warmup_steps))


class WarmupCosine:
    """Linear warm-up, then half a cosine down to `final_fraction` at the last step.

    Args:
        warmup_steps: optimizer steps from zero to the full rate.
        final_fraction: the rate at the end, as a fraction of the recipe's learning rate.
        total_steps: length of the cosine in optimizer steps; None takes the length of the run.
    """

    def __init__(self, *, warmup_steps: int = 0, final_fraction: float = 0.0, total_steps: int | None = None) -> None:
        if warmup_steps < 0 or not 0 <= final_fraction <= 1:
            raise ValueError(f"warmup_steps ({warmup_steps}) must be at least 0, final_fraction ({final_fraction}) "
                             f"in [0, 1]")  # fmt: skip
        if total_steps is not None and total_steps <= warmup_steps:
            raise ValueError(f"total_steps ({total_steps}) must be above warmup_steps ({warmup_steps})")
        self.warmup_steps, self.final_fraction, self.total_steps = warmup_steps, final_fraction, total_steps

    def factor(self, step: int, total_steps: int | None) -> float:
        """Warm-up, then final + (1 - final) (1 + cos(pi t)) / 2 with t from 0 to 1.

        Raises:
            ValueError: the run's length in steps is not known and `total_steps` was not given.
        """
        total = self.total_steps or total_steps
        if total is None:
            raise ValueError("a duration in seconds or hours has no last step; set the cosine's total_steps")
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        t = min(1.0, (step - self.warmup_steps) / max(1, total - 1 - self.warmup_steps))
        return self.final_fraction + (1 - self.final_fraction) * 0.5 * (1 + math.cos(math.pi * t))


class Straight:
    """A straight line over the run: the last part of a training, or a phase with its own slope.

    Args:
        begin: the rate at the first step, as a fraction of the recipe's learning rate.
        end: that at the last step.
    """

    def __init__(self, *, begin: float = 1.0, end: float = 0.0) -> None:
        if not (0 <= begin < math.inf and 0 <= end < math.inf):
            raise ValueError(f"begin ({begin}) and end ({end}) must be finite and not negative")
        self.begin, self.end = begin, end

    def factor(self, step: int, total_steps: int | None) -> float:
        """begin + (end - begin) t with t from 0 to 1. ValueError if the run's length in steps is not known."""
        if total_steps is None:
            raise ValueError("a duration in seconds or hours has no last step, where a straight line could end")
        return self.begin + (self.end - self.begin) * min(1.0, step / max(1, total_steps - 1))
