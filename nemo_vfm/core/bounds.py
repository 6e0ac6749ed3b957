"""Refuses numbers out of range, with the number and the limit, before anything is built or allocated from them."""

#: Each is a few times what the largest published models have; a slip of the pen has far more.
MOST_BLOCKS = 1_000
MOST_WIDTH = 1 << 20
MOST_HEADS = 1 << 14  # heads, and the width of one
MOST_VOCAB = 1 << 26
MOST_ROWS = 1 << 40  # of an embedding table
MOST_TEXT_TOKENS = 1 << 17  # of a caption
LEAST_FPS, MOST_FPS = 1e-3, 1_000
MOST_FRAMES = 100_000
MOST_FILE_FRAMES = 100_000_000  # of a raw video: ten days at 120 fps
LARGEST_THETA = 1e12  # base of rotary frequencies
MOST_RANKS = 1 << 20
MOST_STEPS = 10_000  # of a sampler
MOST_SIDE_PX = 16_384  # what H.264 at level 6.2 can say


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
