"""Cuts normalised texts into overlapping n-grams of characters or words, as sets and as hashes.

Shape letters: U units (characters or words) of several texts in one line, S shingles, N texts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from nemo_vfm.core.bounds import require_between
from nemo_vfm.dedup.texts.normalize_text import words

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio, odd
_MIX = np.uint64(0xFF51AFD7ED558CCD)  # of MurmurHash3's finalizer
_SHIFT = np.uint64(33)
_LONGEST = 1_000


@dataclass(frozen=True, slots=True)
class Shingles:
    """Which n-grams of a text are compared.

    Raises:
        ValueError: where size is below 1 or above 1,000.
    """

    #: "characters" suits short texts and every script. In long documents most 5-grams of characters of a language occur
    #: anyway, so there "words" tells texts apart better; punctuation is then ignored.
    unit: Literal["characters", "words"] = "characters"
    size: int = 5  #: units of one n-gram. A text with fewer units is one shingle.

    def __post_init__(self) -> None:
        if self.unit not in ("characters", "words"):
            raise ValueError(f'unit is {self.unit!r}; take "characters" or "words"')
        require_between(1, _LONGEST, size=self.size)

    def units(self, text: str) -> Sequence[str]:
        """The characters or words of a normalised text."""
        return text if self.unit == "characters" else words(text)

    def of(self, text: str) -> set[str]:
        """The set of shingles of a normalised text; one that is shorter than `size` is one shingle."""
        units, join = self.units(text), "" if self.unit == "characters" else " "
        count = max(1, len(units) - self.size + 1)
        return {join.join(units[first : first + self.size]) for first in range(count)}

    def hashes(self, texts: Sequence[str]) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        """(S,) hashes of the shingles of all normalised texts, one text after another, and (N,) where each begins."""
        units = [self.units(text) for text in texts]
        # All in one line, with `size` zeros after each text, so that a window may begin at any unit of it.
        if self.unit == "characters":
            line = "".join("".join(text) + "\0" * self.size for text in units)
            line_U = np.frombuffer(line.encode("utf-32-le", "surrogatepass"), dtype="<u4").astype(np.uint64)
        else:
            gap = [0] * self.size
            line_U = np.array([number for text in units for number in [*map(word_hash, text), *gap]], dtype=np.uint64)
        lengths = np.array([len(each) for each in units], dtype=np.int64)
        counts = np.maximum(lengths - self.size + 1, 1)
        in_line, starts = np.cumsum(lengths + self.size) - (lengths + self.size), np.cumsum(counts) - counts
        places_S = np.repeat(in_line - starts, counts) + np.arange(counts.sum())
        return window_hashes(line_U, self.size)[places_S], starts


def jaccard(a: set[str], b: set[str]) -> float:
    """|a and b| / |a or b| of two sets that are not empty."""
    both = len(a & b)
    return both / (len(a) + len(b) - both)


def window_hashes(line_U: NDArray[np.uint64], size: int) -> NDArray[np.uint64]:
    """The hash of each window of `size` numbers, (max(U - size + 1, 0),)."""
    count = max(len(line_U) - size + 1, 0)
    found = np.zeros(count, dtype=np.uint64)
    for offset in range(size):
        found *= _MULTIPLIER
        found += line_U[offset : offset + count]
    for _ in range(2):  # spread every bit over all bits
        found ^= found >> _SHIFT
        found *= _MIX
    found ^= found >> _SHIFT
    return found


@lru_cache(maxsize=1 << 17)
def word_hash(word: str) -> int:
    """64 bits, the same on every machine and in every process (unlike `hash`)."""
    return int.from_bytes(blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")
