"""Finds texts whose shingles have at least a given Jaccard similarity, which is computed for every pair reported.

MinHash with bands (`minhash`) only proposes pairs. Proposals whose signatures differ too much are dropped by
arithmetic on arrays, and the rest are compared shingle by shingle. Texts are all there, or come one at a time.

Shape letters: N texts of an array (room for more than there are), P numbers of a signature, B bands, E = N * B.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from nemo_vfm.dedup.texts.minhash import band_keys, bands_for, buckets, min_equal, signatures
from nemo_vfm.dedup.texts.normalize_text import exact_duplicates, normalize
from nemo_vfm.dedup.texts.shingles import Shingles, jaccard

NUM_HASHES = 128
_CACHED_CHARACTERS = 1 << 20  # of texts whose sets of shingles are kept for the next comparison; about 100 MB
_CHARACTERS_5 = Shingles()
_FIRST_ROOM = 256  # texts; it doubles where there are more


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
        num_hashes: numbers of a signature; more need more time and propose fewer needless pairs.

    Raises:
        ValueError: where a number is out of range, or num_hashes are too few for the threshold.
    """
    search = _Search(texts, threshold, shingles, num_hashes, seed)
    gone: dict[int, int] = {}
    for item in range(len(search.places)):
        match = next(search.matches(item), None)
        if match is None:
            search.buckets.enter(item)  # later texts find it
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
    """
    search = _Search(texts, threshold, shingles, num_hashes, seed)
    yield from (TextPair(first, copy, 1.0) for copy, first in search.copies.items())
    for item in range(len(search.places)):
        yield from search.matches(item)
        search.buckets.enter(item)  # later texts find it


class _Search:
    """Distinct texts, numbered in their order; those that entered are found by those that come later.

    Attributes:
        copies: `{position of a copy: position of the first text that it equals}`.
        places: the position of each distinct text.
        buckets: which of them entered.
    """

    def __init__(self, texts: Sequence[str], threshold: float, shingles: Shingles, num_hashes: int, seed: int) -> None:
        bands = bands_for(threshold, num_hashes)
        self.copies = exact_duplicates(texts)
        self.places = [place for place in range(len(texts)) if place not in self.copies]
        self._texts = [normalize(texts[place]) for place in self.places]
        signatures_NP = signatures(self._texts, shingles, num_hashes, seed)
        self.buckets = _Buckets(buckets(signatures_NP, bands))
        # The last byte of each number is enough to estimate: different ones agree once in 256, which drops nobody.
        self._bytes_NP = signatures_NP.astype(np.uint8)
        self._threshold = threshold
        self._min_equal = min_equal(threshold, num_hashes)
        self._shingles = shingles
        length = sum(map(len, self._texts)) // max(1, len(self._texts)) + 1
        self._cached = lru_cache(_CACHED_CHARACTERS // length + 1)(lambda item: shingles.of(self._texts[item]))

    def matches(self, item: int) -> Iterator[TextPair]:
        """Earlier texts that are similar, the one with the most similar signature first."""
        # Those with a common bucket and a signature that lets them be similar.
        others = self.buckets.others(item)
        same = (self._bytes_NP[others] == self._bytes_NP[item]).view(np.uint8)
        equal = np.einsum("np->n", same, dtype=np.int32)
        order = np.argsort(-equal, kind="stable")
        likely: NDArray[np.int64] = others[order[equal[order] >= self._min_equal]]
        if not len(likely):
            return
        own = self._shingles.of(self._texts[item])
        for other in likely.tolist():
            similarity = jaccard(own, self._cached(other))
            if similarity >= self._threshold:
                yield TextPair(self.places[other], self.places[item], similarity)


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
        shared = self._bucket_items(item)
        self._members[self._end[shared]] = item
        self._end[shared] += 1

    def others(self, item: int) -> NDArray[np.int64]:
        """The texts that entered a bucket of this one, ascending."""
        shared = self._bucket_items(item)
        for first, end in zip(self._first[shared].tolist(), self._end[shared].tolist(), strict=True):
            self._marked_N[self._members[first:end]] = True
        found = np.flatnonzero(self._marked_N[:item]) if len(shared) else np.empty(0, dtype=np.int64)
        self._marked_N[found] = False
        return found

    def _bucket_items(self, item: int) -> NDArray[np.int32]:
        row_B = self._buckets_NB[item]
        shared: NDArray[np.int32] = row_B[row_B >= 0]
        return shared


class NearTextIndex:
    """Texts that entered, found by those that come later.

    A text costs its own bytes, `num_hashes` and 16 to 20 for each band, and up to twice that where the arrays have
    just doubled: 0.5 to 1.1 kB with the defaults.

    Args:
        threshold: least Jaccard similarity, above 0, at most 1.

    Raises:
        ValueError: where a number is out of range, or num_hashes are too few for the threshold.
    """

    def __init__(
        self, *, threshold: float = 0.8, shingles: Shingles = Shingles(), num_hashes: int = NUM_HASHES, seed: int = 0
    ) -> None:
        self._bands = bands_for(threshold, num_hashes)
        self._threshold, self._min_equal = threshold, min_equal(threshold, num_hashes)
        self._shingles, self._num_hashes, self._seed = shingles, num_hashes, seed
        self._texts: list[str] = []
        self._bytes_NP = np.empty((_FIRST_ROOM, num_hashes), dtype=np.uint8)
        self._chains = _Chains(self._bands.count)
        self._size_of_texts = 0
        # A text is looked for, and then enters.
        self._last: tuple[str, NDArray[np.uint8], NDArray[np.uint64]] | None = None

    def __len__(self) -> int:
        """How many texts have entered."""
        return len(self._texts)

    def size(self) -> int:
        """Bytes of all that is kept."""
        return self._size_of_texts + self._bytes_NP.nbytes + self._chains.size()

    def matches(self, text: str) -> Iterator[tuple[int, float]]:
        """Similar texts by their number, with the Jaccard similarity; the one with the most similar signature first."""
        plain, bytes_P, keys_B = self._signature(text)
        others = self._chains.others(keys_B)
        equal = (self._bytes_NP[others] == bytes_P).sum(axis=1)
        order = np.argsort(-equal, kind="stable")
        likely = others[order[equal[order] >= self._min_equal]]
        if not len(likely):
            return
        own = self._shingles.of(plain)
        for other in likely.tolist():
            similarity = jaccard(own, self._shingles.of(self._texts[other]))
            if similarity >= self._threshold:
                yield other, similarity

    def enter(self, text: str) -> int:
        """Let later texts find this one; its number, from 0."""
        plain, bytes_P, keys_B = self._signature(text)
        if len(self) == len(self._bytes_NP):
            self._bytes_NP = np.concatenate([self._bytes_NP, np.empty_like(self._bytes_NP)])
        self._bytes_NP[len(self)] = bytes_P
        self._texts.append(plain)
        self._size_of_texts += sys.getsizeof(plain) + 8
        self._chains.enter(keys_B)
        return len(self) - 1

    def _signature(self, text: str) -> tuple[str, NDArray[np.uint8], NDArray[np.uint64]]:
        """Normalised, the last byte of each number of its signature, and the key of each band."""
        plain = normalize(text)
        if self._last is None or self._last[0] != plain:
            signature_1P = signatures([plain], self._shingles, self._num_hashes, self._seed)
            keys = [band_keys(signature_1P, self._bands, band) for band in range(self._bands.count)]
            self._last = plain, signature_1P[0].astype(np.uint8), np.concatenate(keys)
        return self._last


class _Chains:
    """Which texts have a key in a band: a hash table whose entries are chained, all in arrays."""

    def __init__(self, bands: int) -> None:
        self._bands, self._count = bands, 0  # of entries
        self._keys_E = np.empty(_FIRST_ROOM * bands, dtype=np.uint64)
        self._before_E = np.empty(_FIRST_ROOM * bands, dtype=np.int32)
        self._chain()

    def size(self) -> int:
        """Bytes."""
        return self._keys_E.nbytes + self._before_E.nbytes + self._last.nbytes

    def enter(self, keys_B: NDArray[np.uint64]) -> None:
        """Enter the next text."""
        if self._count == len(self._keys_E):
            self._keys_E = np.concatenate([self._keys_E, np.empty_like(self._keys_E)])
            self._before_E = np.empty(len(self._keys_E), dtype=np.int32)
            self._chain()
        for slot, key in zip(self._slots(keys_B).tolist(), keys_B, strict=True):
            self._keys_E[self._count] = key
            self._before_E[self._count], self._last[slot] = self._last[slot], self._count
            self._count += 1

    def others(self, keys_B: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Texts with one of these keys in the same band, ascending."""
        found, bands = [np.empty(0, dtype=np.int64)], np.arange(self._bands)
        entries = self._last[self._slots(keys_B)]
        while len(entries):
            alive = entries >= 0
            entries, bands = entries[alive], bands[alive]
            same = (self._keys_E[entries] == keys_B[bands]) & (entries % self._bands == bands)
            found.append(entries[same] // self._bands)
            entries = self._before_E[entries]
        return np.unique(np.concatenate(found))

    def _slots(self, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
        return (keys & np.uint64(len(self._last) - 1)).astype(np.int64)

    def _chain(self) -> None:
        """Make a table of at least as many slots as there is room for entries, and chain the entries anew."""
        self._last = np.full(1 << (len(self._keys_E) - 1).bit_length(), -1, dtype=np.int32)
        slots = self._slots(self._keys_E[: self._count])
        order = np.argsort(slots, kind="stable")
        follows = np.concatenate([[False], slots[order[1:]] == slots[order[:-1]]])[: self._count]
        self._before_E[order] = np.where(follows, np.concatenate([[-1], order[:-1]])[: self._count], -1)
        self._last[slots[order]] = order  # of equal slots the last one stays
