"""Finds texts that share an n-gram of words with texts of an evaluation (GPT-3, arXiv 2005.14165, appendix C).

Shape letters: U words of a text in one line, G n-grams of the references.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nemo_vfm.core.bounds import require_between
from nemo_vfm.core.log import logger
from nemo_vfm.dedup.texts.normalize_text import words
from nemo_vfm.dedup.texts.shingles import window_hashes, word_hash

_LONGEST = 1_000


@dataclass(frozen=True, slots=True)
class Overlap:
    """Where a text meets an evaluation."""

    reference: int  #: the position of the evaluation's text
    ngram: str  #: the words in common, normalised


class Contamination:
    """Tells which texts share `n` words in a row with a reference.

    A reference of fewer than `n` words is found where all of them occur in a row; one of fewer than `shortest` words
    (an answer such as "Paris") only where it is the whole text. Words are compared as `words` gives them: case,
    punctuation and white space do not count. A hash only proposes; the words themselves decide.

    Args:
        references: texts of the evaluations. They are kept, with 12 bytes for each of their words; the texts that are
            looked at are not.
        n: words in a row; GPT-3 took 8 to 13, by the evaluation.
        shortest: words of the shortest reference that is looked for inside of a text.

    Raises:
        ValueError: where n is out of range, shortest is above n, or no reference has a word.
    """

    def __init__(self, references: Iterable[str], *, n: int = 13, shortest: int = 8) -> None:
        require_between(1, _LONGEST, n=n)
        require_between(1, n, shortest=shortest)
        self._n = n
        self._lines = [" ".join(words(text)) for text in references]
        self._whole: dict[str, int] = {}
        self._hashes_G: dict[int, NDArray[np.uint64]] = {}
        self._owners_G: dict[int, NDArray[np.int32]] = {}
        # Hashes of the references, sorted, by the number of words at which they are looked for.
        by_size: dict[int, list[tuple[int, NDArray[np.uint64]]]] = {}
        for reference, line in enumerate(self._lines):
            found = line.split()
            if len(found) >= shortest:
                size = min(self._n, len(found))
                by_size.setdefault(size, []).append((reference, window_hashes(_line(found), size)))
            elif found:
                self._whole.setdefault(line, reference)
        empty = sum(not line for line in self._lines)
        if empty == len(self._lines):
            raise ValueError(f"none of the {empty} references has a word; give the texts of the evaluations")
        if empty:
            logger().warning("%d of %d references have no words and match nothing", empty, len(self._lines))
        for size, parts in by_size.items():
            hashes_G = np.concatenate([hashes for _, hashes in parts])
            owners_G = np.repeat(
                np.array([reference for reference, _ in parts], dtype=np.int32), [len(hashes) for _, hashes in parts]
            )
            # Stable, so that of several references with one n-gram the first is met first.
            order = np.argsort(hashes_G, kind="stable")
            self._hashes_G[size], self._owners_G[size] = hashes_G[order], owners_G[order]

    def find(self, text: str) -> Overlap | None:
        """What the text shares with the references: the first place in the text, the longest n-gram first."""
        found = words(text)
        line_U = _line(found)
        for size in sorted(self._hashes_G, reverse=True):
            hashes, known_G = window_hashes(line_U, size), self._hashes_G[size]
            left = np.searchsorted(known_G, hashes)
            right = np.searchsorted(known_G, hashes, side="right")
            for first in np.flatnonzero(left < right).tolist():
                ngram = " ".join(found[first : first + size])
                for reference in self._owners_G[size][left[first] : right[first]].tolist():
                    if f" {ngram} " in f" {self._lines[reference]} ":
                        return Overlap(reference, ngram)
        whole = " ".join(found)
        return Overlap(self._whole[whole], whole) if whole in self._whole else None

    def find_all(self, texts: Iterable[str]) -> dict[int, Overlap]:
        """`{position: overlap}` of the texts that share something; the texts may be a stream."""
        found = ((position, self.find(text)) for position, text in enumerate(texts))
        return {position: overlap for position, overlap in found if overlap is not None}


def _line(found: list[str]) -> NDArray[np.uint64]:
    return np.array([word_hash(word) for word in found], dtype=np.uint64)
