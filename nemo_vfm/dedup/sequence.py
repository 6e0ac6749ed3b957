"""Computes one signature per frame at a steady rate, and the share of one such sequence found in another.

A copy may be smaller, recoded, at another frame rate, or cut at both ends. It must not be mirrored, cropped or run at
another speed. Shape letters: T frames, H height, W width, C colours (RGB), D numbers of a signature.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from nemo_vfm.dedup.cluster import clusters, num_clusters

Signatures = NDArray[np.float32]  # (T, D)
Kept = NDArray[np.float16] | Signatures  # as they are remembered: half the bytes, made float32 where they are compared

RATE = 8.0  #: signatures a second: those of a cut copy lie at most a sixteenth of a second off
_SIDE_PX = 32
# Cosine frequencies a side that are kept. With 7 of luma a small circle and a small square were one.
_LUMA, _CHROMA = 12, 3
# Power of a signature below which it says little: a black frame has about 0, a dark one with a face 3,000.
_NOISE = 50.0
# Measured on the signatures of Sintel's trailer, cut at other frames: the same moment agrees to 0.85 and more, most
# others to less than 0.5.
_DIFFERENT, _SAME = 0.5, 0.85
_SLACK = 2  # half steps by which a frame may lie beside the place that the offset says
_PRIOR = 0.1  # frames' worth of doubt: what is next to black proves nothing
_CANDIDATE = 0.75
_ROWS = 2048
_ALL_WITH_ALL = 40_000  # moments: 80 minutes of clips; clusters cost more below


@dataclass(frozen=True, slots=True)
class Pair:
    """Sequences or vectors `a` < `b` (by position) and their likeness."""

    a: int
    b: int
    cosine: float


def signature(frame_HWC: NDArray[np.uint8]) -> NDArray[np.float32]:
    """The low cosine frequencies of luma and chroma, (162,), finer ones weighted up since pictures have less of them.

    Luma's mean is left out: fades and other exposures change it more than other pictures do.
    """
    small = cv2.resize(frame_HWC, (_SIDE_PX, _SIDE_PX), interpolation=cv2.INTER_AREA)
    planes = np.asarray(cv2.cvtColor(small, cv2.COLOR_RGB2YCrCb), dtype=np.float32)
    luma = _low_frequencies(planes[..., 0], _LUMA, mean=0.0)
    chroma = [_low_frequencies(planes[..., place] - 128, _CHROMA, mean=0.5) for place in (1, 2)]
    return np.concatenate([luma, *chroma])


def _low_frequencies(plane: NDArray[np.float32], count: int, *, mean: float) -> NDArray[np.float32]:
    frequencies = np.add.outer(np.arange(count), np.arange(count)).astype(np.float32)
    frequencies[0, 0] = mean
    spectrum = np.asarray(cv2.dct(np.ascontiguousarray(plane)), dtype=np.float32)
    return np.asarray(spectrum[:count, :count] / _SIDE_PX * frequencies, dtype=np.float32).ravel()


def contained_share(a_TD: Signatures, b_TD: Signatures) -> float:
    """The share of the shorter one's frames that the longer one shows in the same order and pace, 0 to 1.

    All offsets are tried. Frames count by how much there is to see on them, and at most as far as `_SAME` asks.
    """
    short, long = (a_TD, b_TD) if len(a_TD) <= len(b_TD) else (b_TD, a_TD)
    # (T short, T long): whether a frame is seen at a moment or just beside it, from 0 (no) to 1 (yes).
    fine = np.empty((2 * len(long) - 1, long.shape[1]), np.float32)
    # Two sequences of the same film are sampled at other moments; halfway between two samples lies a fair guess.
    fine[::2], fine[1::2] = long, (long[1:] + long[:-1]) / 2
    power = np.square(short).sum(axis=1)[:, None] + np.square(fine).sum(axis=1)
    agreement = 2 * (short @ fine.T) / (power + 2 * _NOISE)
    graded = np.clip((agreement - _DIFFERENT) / (_SAME - _DIFFERENT), 0, 1)
    padded = np.pad(graded, ((0, 0), (_SLACK, _SLACK)))
    beside = [padded[:, shift : shift + graded.shape[1]] for shift in range(2 * _SLACK + 1)]
    widest: NDArray[np.float32] = np.max(beside, axis=0)[:, ::2]
    strength = np.square(short).sum(axis=1)
    weights: NDArray[np.float32] = strength / (strength + _NOISE)
    rows = np.arange(len(short))
    best = 0.0
    for offset in range(1 - len(short), len(long)):
        inside = rows[max(0, -offset) : len(long) - offset]
        best = max(best, float((weights[inside] * widest[inside, inside + offset]).sum()))
    return best / (float(weights.sum()) + _PRIOR)


def find_pairs(sequences: Sequence[Kept], above: float) -> list[Pair]:
    """Every pair of sequences of which one holds more than `above` of the other, in order of position.

    Only pairs with a moment in common are aligned. Of many moments only those in a common cluster are compared. A copy
    has so many that one pair of them is found.
    """
    owners = np.repeat(np.arange(len(sequences)), [len(sequence) for sequence in sequences])
    width = sequences[0].shape[1] if sequences else 1
    # By length, in one array: the only copy, since it holds 5 kB for each second of all videos.
    scaled = np.empty((sum(len(sequence) for sequence in sequences), width), np.float32)
    first = 0
    for sequence in sequences:
        fine = sequence.astype(np.float32, copy=False)
        lengths = np.sqrt(np.square(fine).sum(axis=1, keepdims=True) + _NOISE)
        np.divide(fine, lengths, out=scaled[first : first + len(fine)])
        first += len(fine)
    near: set[tuple[int, int]] = set()
    few = len(scaled) <= _ALL_WITH_ALL
    for members in [np.arange(len(scaled))] if few else clusters(scaled, num_clusters(len(scaled))):
        for top in range(0, len(members), _ROWS):
            for left in range(top, len(members), _ROWS):
                one, other = members[top : top + _ROWS], members[left : left + _ROWS]
                rows, columns = np.nonzero(scaled[one] @ scaled[other].T > _CANDIDATE)
                codes = owners[one[rows]] * len(sequences) + owners[other[columns]]
                near |= {(int(code) // len(sequences), int(code) % len(sequences)) for code in np.unique(codes)}
    found = []
    for a, b in sorted(pair for pair in near if pair[0] < pair[1]):
        both = (sequences[place].astype(np.float32, copy=False) for place in (a, b))
        if (share := contained_share(*both)) > above:
            found.append(Pair(a, b, share))
    return found


def kept_by_likeness(
    preferences: Sequence[tuple[float | str, ...]], pairs: Iterable[tuple[int, int]]
) -> dict[int, int]:
    """For each item that is to go, the best of the kept items that it is itself like.

    It follows no chain. Two shots that lie in one long film are like the film and not like each
    other; if one of them is kept in the film's place, for it is larger, the other stays too.
    """
    like: dict[int, set[int]] = {item: set() for item in range(len(preferences))}
    for a, b in pairs:
        if a != b:
            like[a].add(b)
            like[b].add(a)
    # sorted() is stable in reverse, too: of equals the first stays.
    rank = {item: place for place, item in enumerate(sorted(like, key=lambda item: preferences[item], reverse=True))}
    gone: dict[int, int] = {}
    for item in rank:
        keepers = [other for other in like[item] if rank[other] < rank[item] and other not in gone]
        if keepers:
            gone[item] = min(keepers, key=rank.__getitem__)
    return gone
