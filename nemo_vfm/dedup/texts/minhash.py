"""Computes MinHash signatures of texts, and cuts them into bands: texts that share a band are candidate pairs.

The share of equal numbers in two signatures estimates the Jaccard similarity of their shingles (Broder 1997). Two
texts of similarity s share one of b bands of r numbers with probability 1 - (1 - s^r)^b.
Shape letters: N texts, P numbers of a signature, S shingles, B bands.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nemo_vfm.core.bounds import require_between
from nemo_vfm.dedup.texts.shingles import Shingles, window_hashes

MIN_RECALL = 0.99  #: probability that a pair at the threshold shares a band, at least
_MAX_HASHES = 4096
_DEVIATIONS = 4.0  # standard deviations; estimates of one pair in 30,000 are further below
_CHUNK_CHARACTERS = 1 << 17  # so that a chunk's hashes stay in the cache of a core for all P permutations


@dataclass(frozen=True, slots=True)
class Bands:
    """How a signature is cut: `count` bands of `rows` numbers; a remainder at the end is unused."""

    count: int
    rows: int

    def recall(self, similarity: float) -> float:
        """The probability that two texts of this Jaccard similarity share a band."""
        return 1 - (1 - similarity**self.rows) ** self.count


def bands_for(threshold: float, num_hashes: int) -> Bands:
    """The longest bands, which give the fewest false candidates, with a recall of `MIN_RECALL` at the threshold.

    Raises:
        ValueError: a number is out of range, or even bands of one number miss too many pairs.
    """
    require_between(1, _MAX_HASHES, num_hashes=num_hashes)
    if not 0 < threshold <= 1:
        raise ValueError(f"threshold must be above 0 and at most 1, got {threshold}")
    for rows in range(num_hashes, 0, -1):
        bands = Bands(num_hashes // rows, rows)
        if bands.recall(threshold) >= MIN_RECALL:
            return bands
    raise ValueError(
        f"{num_hashes} hashes find only {Bands(num_hashes, 1).recall(threshold):.0%} of the pairs at a threshold of "
        f"{threshold}; use more hashes or a higher threshold"
    )


def signatures(texts: Sequence[str], shingles: Shingles, num_hashes: int, seed: int) -> NDArray[np.uint32]:
    """(N, P) signatures of normalised texts: the minimum of a text's hashes under each of P permutations."""
    rng = np.random.default_rng(seed)
    flips_P = rng.integers(1 << 32, size=num_hashes, dtype=np.uint32)
    # Multiplication by an odd factor permutes the numbers of 32 bits.
    factors_P = rng.integers(1 << 32, size=num_hashes, dtype=np.uint32) | np.uint32(1)
    signatures_NP = np.empty((len(texts), num_hashes), dtype=np.uint32)
    done = 0
    for chunk in _chunks(texts):
        hashes, starts = shingles.hashes(chunk)
        hashes_S = (hashes >> np.uint64(32)).astype(np.uint32)
        for p, (flip, factor) in enumerate(zip(flips_P, factors_P, strict=True)):
            signatures_NP[done : done + len(chunk), p] = np.minimum.reduceat((hashes_S ^ flip) * factor, starts)
        done += len(chunk)
    return signatures_NP


def band_keys(signatures_NP: NDArray[np.uint32], bands: Bands, band: int) -> NDArray[np.uint64]:
    """(N,) a hash of each text's numbers in one band; equal numbers have equal hashes."""
    numbers = np.ascontiguousarray(signatures_NP[:, band * bands.rows : (band + 1) * bands.rows], dtype=np.uint64)
    return window_hashes(numbers.ravel(), bands.rows)[:: bands.rows]


def min_equal(threshold: float, num_hashes: int) -> float:
    """How many numbers two signatures of this similarity share at least, except in one pair of 30,000."""
    return num_hashes * threshold - _DEVIATIONS * math.sqrt(num_hashes * threshold * (1 - threshold))


def buckets(signatures_NP: NDArray[np.uint32], bands: Bands) -> NDArray[np.int32]:
    """(N, B) each text's bucket in each band, numbered across bands; -1 if no other text is in it."""
    buckets_NB = np.full((len(signatures_NP), bands.count), -1, dtype=np.int32)
    used = 0
    for band in range(bands.count):
        keys = band_keys(signatures_NP, bands, band)
        _, owner, sizes = np.unique(keys, return_inverse=True, return_counts=True)
        shared = sizes > 1
        numbered = np.where(shared, np.cumsum(shared) - 1 + used, -1)
        buckets_NB[:, band] = numbered[owner]
        used += int(shared.sum())
    return buckets_NB


def _chunks(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield consecutive texts of at most `_CHUNK_CHARACTERS` together; a longer text comes alone."""
    first = size = 0
    for place, text in enumerate(texts):
        if size and size + len(text) > _CHUNK_CHARACTERS:
            yield texts[first:place]
            first, size = place, 0
        size += len(text) + 1
    if first < len(texts):
        yield texts[first:]
