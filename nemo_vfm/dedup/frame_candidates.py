"""Picks the frames worth comparing: those whose binary descriptors fall into the same buckets (LSH).

Shape letters: N descriptors, B bytes of one, P pairs.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Numbers = NDArray[np.int64]

# A descriptor of the same spot differs in about an eighth of its bits, so in a quarter of all cases it shares one of
# 4 keys of 20 bits; an unrelated one does in 4 of a million.
_TABLES, _BITS = 4, 20
_CROWD = 256  # descriptors with one key; more are of flat or repeated patterns and would pair all with all
_LEAST = 2  # votes
_PROBES = 8  # pairs of frames for each two clips


def candidates(clips: Sequence[Sequence[Bytes]]) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """`{(clip a, clip b): [(frame of a, frame of b), ...]}`, a before b: the 8 pairs with most keys in common.

    Args:
        clips: of each clip, of each frame, descriptors (N, B).
    """
    frames = [(clip, place) for clip, found in enumerate(clips) for place in range(len(found))]
    counts = [len(clips[clip][place]) for clip, place in frames]
    if not sum(counts):
        return {}
    owners = np.repeat(np.arange(len(frames)), counts)
    clip_of = np.array([clip for clip, _ in frames])
    bytes_NB = np.concatenate([bits for found in clips for bits in found])
    tables = np.random.default_rng(0).permutation(8 * bytes_NB.shape[1])[: _TABLES * _BITS].reshape(_TABLES, _BITS)
    codes = [code for table in tables for code in _codes(_keys(bytes_NB, table), owners, clip_of)]
    found, votes = np.unique(np.concatenate([np.zeros(0, np.int64), *codes]), return_counts=True)
    order = np.argsort(-votes[votes >= _LEAST], kind="stable")
    pairs: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for code in found[votes >= _LEAST][order]:
        (a, i), (b, j) = frames[int(code) // len(frames)], frames[int(code) % len(frames)]
        if len(probes := pairs.setdefault((a, b), [])) < _PROBES:
            probes.append((i, j))
    return dict(sorted(pairs.items()))


def _keys(bytes_NB: Bytes, table: Numbers) -> Numbers:
    """A number of the bits of a table, the first the lowest. All bits unpacked are eight times the descriptors."""
    keys_N = np.zeros(len(bytes_NB), np.int64)
    for place, bit in enumerate(table):
        keys_N |= ((bytes_NB[:, bit >> 3] >> (7 - (bit & 7))) & 1).astype(np.int64) << place
    return keys_N


def _codes(keys_N: Numbers, owners_N: Numbers, clip_of: Numbers) -> list[Numbers]:
    """`a * number of frames + b` of each two frames with a key in common, once for each two descriptors of them."""
    order = np.lexsort((owners_N, keys_N))
    keys, owners = keys_N[order], owners_N[order]
    lengths = np.diff(np.flatnonzero(np.r_[True, keys[1:] != keys[:-1], True]))
    few = np.repeat(lengths <= _CROWD, lengths)
    keys, owners = keys[few], owners[few]
    found = []
    for apart in range(1, int(lengths[lengths <= _CROWD].max(initial=1))):  # neighbours in runs of equal keys
        a, b = owners[:-apart], owners[apart:]
        same = (keys[apart:] == keys[:-apart]) & (clip_of[a] != clip_of[b])
        found.append(a[same] * len(clip_of) + b[same])
    return found
