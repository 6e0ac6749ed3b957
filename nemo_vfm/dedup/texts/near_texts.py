"""Finds texts whose shingles have at least a given Jaccard similarity, which is computed for every pair reported.

MinHash with bands (`minhash`) only proposes pairs. Proposals whose signatures differ too much are dropped by
arithmetic on arrays, and the rest are compared shingle by shingle.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from nemo_vfm.dedup.texts.exact_texts import exact_duplicates
from nemo_vfm.dedup.texts.minhash import bands_for, buckets, least_equal, signatures
from nemo_vfm.dedup.texts.normalize_text import normalize
from nemo_vfm.dedup.texts.shingles import Shingles, jaccard

NUM_HASHES = 128
_CACHED_CHARACTERS = 1 << 20  # of texts whose sets of shingles are kept for the next comparison; about 100 MB
_CHARACTERS_5 = Shingles()


@dataclass(frozen=True, slots=True)
class TextPair:
    """Texts `a` < `b` (by position) and the Jaccard similarity of their shingles."""

    a: int
    b: int
    jaccard: float


def near_duplicates(
    texts: Sequence[str],
    *,
    threshold: float = 0.8,
    shingles: Shingles = _CHARACTERS_5,
    num_hashes: int = NUM_HASHES,
    seed: int = 0,
) -> dict[int, int]:
    """`{text that goes: the earlier text that stays in its place}`, by position.

    Each text that goes is itself similar to the one that stays, through no chain. Put what you prefer first. A text
    that stays is compared with texts that stay only, so a thousand variants of one text cost a thousand comparisons.

    Args:
        texts: normalised here; about 2 * num_hashes bytes of each are kept beside it, and while it starts 5.
        threshold: least Jaccard similarity of a duplicate, above 0, at most 1.
        shingles: what is compared.
        num_hashes: numbers of a signature; more need more time and propose fewer needless pairs.
        seed: of the permutations.

    Raises:
        ValueError: where a number is out of range, or num_hashes are too few for the threshold.
    """
    search = _Search(texts, threshold, shingles, num_hashes, seed)
    gone: dict[int, int] = {}
    for item in range(len(search.places)):
        match = next(search.matches(item), None)
        if match is None:
            search.enter(item)
        else:
            gone[search.places[item]] = match.a
    return gone | {copy: gone.get(first, first) for copy, first in search.copies.items()}


def similar_pairs(
    texts: Sequence[str],
    *,
    threshold: float = 0.8,
    shingles: Shingles = _CHARACTERS_5,
    num_hashes: int = NUM_HASHES,
    seed: int = 0,
) -> Iterator[TextPair]:
    """All pairs of distinct texts that are found, and each exact copy with the first text that it equals.

    A thousand variants of one text are half a million pairs; `near_duplicates` does not look at them all.

    Args:
        texts: as for `near_duplicates`, and so are the others.
        threshold: as there.
        shingles: as there.
        num_hashes: as there.
        seed: as there.

    Raises:
        ValueError: as there, at the first pair.
    """
    search = _Search(texts, threshold, shingles, num_hashes, seed)
    yield from (TextPair(first, copy, 1.0) for copy, first in search.copies.items())
    for item in range(len(search.places)):
        yield from search.matches(item)
        search.enter(item)


class _Search:
    """Distinct texts, numbered in their order; those that entered are found by those that come later.

    Attributes:
        copies: `{position of a copy: position of the first text that it equals}`.
        places: the position of each distinct text.
    """

    def __init__(self, texts: Sequence[str], threshold: float, shingles: Shingles, num_hashes: int, seed: int) -> None:
        bands = bands_for(threshold, num_hashes)
        self.copies = exact_duplicates(texts)
        self.places = [place for place in range(len(texts)) if place not in self.copies]
        self._texts = [normalize(texts[place]) for place in self.places]
        signatures_NP = signatures(self._texts, shingles, num_hashes, seed)
        self._buckets = _Buckets(buckets(signatures_NP, bands))
        # The last byte of each number is enough to estimate: different ones agree once in 256, which drops nobody.
        self._bytes_NP = signatures_NP.astype(np.uint8)
        self._threshold = threshold
        self._least_equal = least_equal(threshold, num_hashes)
        self._shingles = shingles
        length = sum(map(len, self._texts)) // max(1, len(self._texts)) + 1
        self._cached = lru_cache(_CACHED_CHARACTERS // length + 1)(lambda item: shingles.of(self._texts[item]))

    def enter(self, item: int) -> None:
        """Let later texts find this one."""
        self._buckets.enter(item)

    def matches(self, item: int) -> Iterator[TextPair]:
        """Earlier texts that are similar, the one with the most similar signature first."""
        likely = self._likely(item)
        if not len(likely):
            return
        own = self._shingles.of(self._texts[item])
        for other in likely.tolist():
            similarity = jaccard(own, self._cached(other))
            if similarity >= self._threshold:
                yield TextPair(self.places[other], self.places[item], similarity)

    def _likely(self, item: int) -> NDArray[np.int64]:
        """Earlier texts with a common bucket and a signature that lets them be similar."""
        others = self._buckets.others(item)
        same = (self._bytes_NP[others] == self._bytes_NP[item]).view(np.uint8)
        equal = np.einsum("np->n", same, dtype=np.int32)
        order = np.argsort(-equal, kind="stable")
        likely: NDArray[np.int64] = others[order[equal[order] >= self._least_equal]]
        return likely


class _Buckets:
    """Which texts have entered each bucket, as one array with a stretch for each bucket.

    Args:
        buckets_NB: for each text its buckets; -1 where it is alone.
    """

    def __init__(self, buckets_NB: NDArray[np.int32]) -> None:
        self._buckets_NB = buckets_NB
        sizes = np.bincount(buckets_NB[buckets_NB >= 0])
        self._first = np.cumsum(sizes) - sizes
        self._end = self._first.copy()
        self._members = np.empty(int(sizes.sum()), dtype=np.int32)
        self._marked_N = np.zeros(len(buckets_NB), dtype=np.bool_)

    def enter(self, item: int) -> None:
        """Put a text into its buckets."""
        shared = self._shared(item)
        self._members[self._end[shared]] = item
        self._end[shared] += 1

    def others(self, item: int) -> NDArray[np.int64]:
        """The texts that entered a bucket of this one, ascending."""
        shared = self._shared(item)
        for first, end in zip(self._first[shared].tolist(), self._end[shared].tolist(), strict=True):
            self._marked_N[self._members[first:end]] = True
        found = np.flatnonzero(self._marked_N[:item]) if len(shared) else np.empty(0, dtype=np.int64)
        self._marked_N[found] = False
        return found

    def _shared(self, item: int) -> NDArray[np.int32]:
        row_B = self._buckets_NB[item]
        shared: NDArray[np.int32] = row_B[row_B >= 0]
        return shared
