"""Tells plausible frame rates of a video from damaged ones."""

from nemo_vfm.core.bounds import LEAST_FPS, MOST_FPS, require_between

#: Beyond these a rate, or one divided by it, is 0 or infinite in fp32, and a model's temporal positions are NaN.
_LEAST, _MOST = 1e-6, 1e6


def is_frame_rate(value: object) -> bool:
    """Whether it is a number of frames per second: above 0 and finite."""
    return isinstance(value, int | float) and not isinstance(value, bool) and _LEAST <= value <= _MOST


def frame_rate(value: float, name: str = "fps") -> float:
    """The value of a recipe, where it is a frame rate that a video can be made in.

    Raises:
        ValueError: it is 0, negative, infinite, NaN or far from any camera's.
    """
    require_between(LEAST_FPS, MOST_FPS, **{name: value})
    return value
