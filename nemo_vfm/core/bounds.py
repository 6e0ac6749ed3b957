"""Refuses numbers out of range, frame rates among them, before anything is built or allocated from them."""

#: Each is a few times what the largest published models have; a slip of the pen has far more.
MAX_BLOCKS = 1_000
MAX_WIDTH = 1 << 20
MAX_HEADS = 1 << 14  # heads, and the width of one
MAX_VOCAB = 1 << 26
MAX_ROWS = 1 << 40  # of an embedding table
MAX_TEXT_TOKENS = 1 << 17  # of a caption
MIN_FPS, MAX_FPS = 1e-3, 1_000
MAX_FRAMES = 100_000
MAX_FILE_FRAMES = 100_000_000  # of a raw video: ten days at 120 fps
LARGEST_THETA = 1e12  # base of rotary frequencies
MAX_RANKS = 1 << 20
MAX_STEPS = 10_000  # of a sampler
MAX_SIDE_PX = 16_384  # what H.264 at level 6.2 can say
#: Beyond these a rate, or one divided by it, is 0 or infinite in fp32, and a model's temporal positions are NaN.
_MIN_RATE, _MAX_RATE = 1e-6, 1e6


def require_between(least: float, most: float, **values: float | None) -> None:
    """Refuse a value below `least` or above `most`, and NaN; None stands for absence and passes.

    Raises:
        ValueError: with the argument's name, its value and the limit.
    """
    for name, value in values.items():
        if value is None or least <= value <= most:
            continue
        words = f"at least {least:,}" if value < least else f"at most {most:,}"
        raise ValueError(f"{name} must be {words}, got {value:,}")


def is_frame_rate(value: object) -> bool:
    """Whether it is a number of frames per second: above 0 and finite."""
    return isinstance(value, int | float) and not isinstance(value, bool) and _MIN_RATE <= value <= _MAX_RATE


def frame_rate(value: float, name: str = "fps") -> float:
    """The value of a recipe, where it is a frame rate that a video can be made in.

    Raises:
        ValueError: it is 0, negative, infinite, NaN or far from any camera's.
    """
    require_between(MIN_FPS, MAX_FPS, **{name: value})
    return value
