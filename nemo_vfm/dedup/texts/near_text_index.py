"""Finds for texts that come one at a time the earlier ones of at least a given Jaccard similarity.

It proposes and decides as `near_texts` does for texts that are all there.
Shape letters: N texts of an array (room for more than there are), P numbers of a signature, B bands, E = N * B.
"""

import sys
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from nemo_vfm.dedup.texts.minhash import band_keys, bands_for, least_equal, signatures
from nemo_vfm.dedup.texts.near_texts import NUM_HASHES
from nemo_vfm.dedup.texts.normalize_text import normalize
from nemo_vfm.dedup.texts.shingles import Shingles, jaccard

_FIRST_ROOM = 256  # texts; it doubles where there are more


class NearTextIndex:
    """Texts that entered, found by those that come later.

    A text costs its own bytes, `num_hashes` and 16 to 20 for each band, and up to twice that where the arrays have
    just doubled: 0.5 to 1.1 kB with the defaults.

    Args:
        threshold: least Jaccard similarity, above 0, at most 1.
        shingles: what is compared.
        num_hashes: numbers of a signature.
        seed: of the permutations.

    Raises:
        ValueError: where a number is out of range, or num_hashes are too few for the threshold.
    """

    def __init__(
        self, *, threshold: float = 0.8, shingles: Shingles = Shingles(), num_hashes: int = NUM_HASHES, seed: int = 0
    ) -> None:
        self._bands = bands_for(threshold, num_hashes)
        self._threshold, self._least_equal = threshold, least_equal(threshold, num_hashes)
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
        plain, bytes_P, keys_B = self._prepared(text)
        others = self._chains.others(keys_B)
        equal = (self._bytes_NP[others] == bytes_P).sum(axis=1)
        order = np.argsort(-equal, kind="stable")
        likely = others[order[equal[order] >= self._least_equal]]
        if not len(likely):
            return
        own = self._shingles.of(plain)
        for other in likely.tolist():
            similarity = jaccard(own, self._shingles.of(self._texts[other]))
            if similarity >= self._threshold:
                yield other, similarity

    def enter(self, text: str) -> int:
        """Let later texts find this one; its number, from 0."""
        plain, bytes_P, keys_B = self._prepared(text)
        if len(self) == len(self._bytes_NP):
            self._bytes_NP = np.concatenate([self._bytes_NP, np.empty_like(self._bytes_NP)])
        self._bytes_NP[len(self)] = bytes_P
        self._texts.append(plain)
        self._size_of_texts += sys.getsizeof(plain) + 8
        self._chains.enter(keys_B)
        return len(self) - 1

    def _prepared(self, text: str) -> tuple[str, NDArray[np.uint8], NDArray[np.uint64]]:
        """Normalised, the last byte of each number of its signature, and the key of each band."""
        plain = normalize(text)
        if self._last is None or self._last[0] != plain:
            signature_1P = signatures([plain], self._shingles, self._num_hashes, self._seed)
            keys = [band_keys(signature_1P, self._bands, band) for band in range(self._bands.count)]
            self._last = plain, signature_1P[0].astype(np.uint8), np.concatenate(keys)
        return self._last


class _Chains:
    """Which texts have a key in a band: a hash table whose entries are chained, all in arrays.

    Args:
        bands: B.
    """

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
