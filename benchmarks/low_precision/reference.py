"""Quantises to FP8 a second time, in numpy and from the definition of the formats, with no cast of torch's.

Each format is a table of its 127 numbers that are not negative and finite. A number goes to the nearest of them, found
by the midpoints, which float64 holds exactly; of two that are equally near, to the one with the even code.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
#: Exponent bits, mantissa bits, codes of finite numbers.
FORMATS = {"e4m3": (4, 3, 127), "e5m2": (5, 2, 124)}
NAN = 0x7F


def _table(name: str) -> NDArray[np.float64]:
    exponent_bits, mantissa_bits, count = FORMATS[name]
    bias, codes = 2 ** (exponent_bits - 1) - 1, np.arange(count)
    exponents, mantissas = codes >> mantissa_bits, codes & (2**mantissa_bits - 1)
    normal = np.ldexp(1 + mantissas / 2**mantissa_bits, exponents - bias)
    return np.where(exponents > 0, normal, np.ldexp(mantissas / 2**mantissa_bits, 1 - bias))


TABLES = {name: _table(name) for name in FORMATS}


def cast(scaled: Floats, name: str) -> NDArray[np.uint8]:
    """Codes, saturating; NAN for what is no number."""
    table = TABLES[name]
    sizes = np.minimum(np.abs(scaled.astype(np.float64)), table[-1])
    middles = (table[:-1] + table[1:]) / 2
    below, above = np.searchsorted(middles, sizes, "left"), np.searchsorted(middles, sizes, "right")
    codes = np.where(below % 2 == 0, below, above)  # they differ at a midpoint alone
    signed = codes + np.where(np.signbit(scaled), 128, 0)
    return np.where(np.isnan(scaled), NAN, signed).astype(np.uint8)


def factors(amax: Floats, name: str, *, pow2: bool) -> Floats:
    """max / amax in float32; 1 where amax says nothing, the largest float32 where it overflows."""
    with np.errstate(all="ignore"):
        found = np.float32(TABLES[name][-1]) / amax
    found = np.where(np.isinf(found), np.finfo(np.float32).max, found)
    found = np.where((amax > 0) & np.isfinite(amax), found, 1).astype(np.float32)
    return np.ldexp(np.float32(1), np.frexp(found)[1] - 1).astype(np.float32) if pow2 else found


def blocks(x: Floats, rows: int, columns: int, name: str, *, pow2: bool) -> tuple[NDArray[np.uint8], Floats]:
    """Codes, and a scale for each block."""
    high, wide = x.shape[0] // rows, x.shape[1] // columns
    cut = x.reshape(high, rows, wide, columns)
    with np.errstate(all="ignore"):
        factor = factors(np.abs(cut).max(axis=(1, 3)), name, pow2=pow2)
        scaled = cut * factor[:, None, :, None]
        return cast(scaled.reshape(x.shape), name), (np.float32(1) / factor).astype(np.float32)


@dataclass
class Delayed:
    """One tensor's factor from the steps before, as a list of what each saw.

    Args:
        name: of the format.
        length: steps that are looked back on.
        margin: see `Fp8`.
    """

    name: str
    length: int
    margin: int
    factor: np.float32 = field(default_factory=lambda: np.float32(1))
    seen: list[float] = field(default_factory=list)

    def step(self, x: Floats) -> tuple[NDArray[np.uint8], np.float32]:
        """Codes and scale of a step, which the next one then remembers."""
        with np.errstate(all="ignore"):
            found = cast((x * self.factor).astype(np.float32), self.name), np.float32(1) / self.factor
        self.seen = [*self.seen, float(np.abs(x).max())][-self.length :]
        amax = np.max(np.array(self.seen, dtype=np.float32))
        if amax > 0 and np.isfinite(amax):
            self.factor = factors(amax, self.name, pow2=False)[()] / np.float32(2.0**self.margin)
        return found
