"""Converts a picture's stored size and pixel shape into its size in square pixels."""

from fractions import Fraction

_NEARLY = Fraction(1, 200)  # encoders write 4095:4096 and the like where they mean 1:1
_LARGEST = 4  # more is a mistake of the header; anamorphic films have 2 at most


def square_size(width: int, height: int, aspect: Fraction | None) -> tuple[int, int]:
    """Width and height, one of them larger than stored, so that nothing is lost; even, as 4:2:0 wants it.

    Args:
        aspect: a pixel's width over its height; None or 0 where nothing is said.
    """
    ratio = Fraction(aspect) if aspect else Fraction(1)
    if not Fraction(1, _LARGEST) <= ratio <= _LARGEST or abs(ratio - 1) <= _NEARLY:
        return width, height
    return (_even(width * ratio), height) if ratio > 1 else (width, _even(height / ratio))


def _even(length: Fraction) -> int:
    return 2 * round(length / 2)
