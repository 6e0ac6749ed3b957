"""Fills freed memory with one value, so that tests detect output that was never written."""

import numpy as np


def dirty_heap(value: int, num_bytes: int) -> None:
    """Fill and free blocks of about `num_bytes`, which the next ones to ask for as many are given."""
    blocks = [np.full(num_bytes + 512 * more, value, np.uint8) for more in range(12)]
    del blocks
