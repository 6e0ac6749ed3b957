"""Scores how much of one clip another one shows, by frames whose descriptors fall into the same buckets (LSH).

The clip may be cropped, scaled, recoded, cut or at another speed.
Shape letters: N descriptors, B bytes of one, P pairs.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from nemo_vfm.dedup.keypoints import LEAST, FrameKeypoints, Place, agreement, register

Bytes = NDArray[np.uint8]
Numbers = NDArray[np.int64]

# A descriptor of the same spot differs in about an eighth of its bits, so in a quarter of all cases it shares one of
# 4 keys of 20 bits; an unrelated one does in 4 of a million.
_TABLES, _BITS = 4, 20
_CROWD = 256  # descriptors with one key; more are of flat or repeated patterns and would pair all with all
_LEAST = 2  # votes
_PROBES = 8  # pairs of frames for each two clips
# Registered frames of one moment agree to 0.8 and more (a logo pasted over costs 0.15), other moments to less.
_DIFFERENT, _SAME = 0.6, 0.85
_SCALE, _SHIFT = 0.1, 0.08  # by which two places of one crop differ, as shares
_HYPOTHESES = 12


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
    codes = [np.zeros(0, np.int64)]
    for table in tables:
        # A number of the bits of a table, the first the lowest. All bits unpacked are eight times the descriptors.
        keys_N = np.zeros(len(bytes_NB), np.int64)
        for place, bit in enumerate(table):
            keys_N |= ((bytes_NB[:, bit >> 3] >> (7 - (bit & 7))) & 1).astype(np.int64) << place
        # `a * number of frames + b` of each two frames with a key in common, once for each two descriptors of them.
        order = np.lexsort((owners, keys_N))
        keys, owner = keys_N[order], owners[order]
        lengths = np.diff(np.flatnonzero(np.r_[True, keys[1:] != keys[:-1], True]))
        few = np.repeat(lengths <= _CROWD, lengths)
        keys, owner = keys[few], owner[few]
        for apart in range(1, int(lengths[lengths <= _CROWD].max(initial=1))):  # neighbours in runs of equal keys
            one, other = owner[:-apart], owner[apart:]
            same_key = (keys[apart:] == keys[:-apart]) & (clip_of[one] != clip_of[other])
            codes.append(one[same_key] * len(frames) + other[same_key])
    found, votes = np.unique(np.concatenate(codes), return_counts=True)
    order = np.argsort(-votes[votes >= _LEAST], kind="stable")
    pairs: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for code in found[votes >= _LEAST][order]:
        (a, i), (b, j) = frames[int(code) // len(frames)], frames[int(code) % len(frames)]
        if len(probes := pairs.setdefault((a, b), [])) < _PROBES:
            probes.append((i, j))
    return dict(sorted(pairs.items()))


def shown_share(a: Sequence[FrameKeypoints], b: Sequence[FrameKeypoints]) -> float:
    """The share of the shorter clip's frames that the longer one shows at one place and in order, 0 to 1.

    Frames in which nothing can be found again count for neither side.
    """
    short, long = sorted(
        ([f for f in a if len(f.points_N2) >= LEAST], [f for f in b if len(f.points_N2) >= LEAST]), key=len
    )
    if not short:
        return 0.0
    places = {(i, j): place for i, x in enumerate(short) for j, y in enumerate(long) if (place := register(x, y))}
    graded = {at: _grade(short[at[0]], long[at[1]], place) for at, place in places.items()}
    best = 0.0
    for one in (places[at] for at in sorted(graded, key=lambda at: -graded[at])[:_HYPOTHESES]):
        # The pairs of frames whose place is this one: a crop stays where it is while the clip runs.
        consistent = {
            at: graded[at]
            for at, other in places.items()
            if abs(other.scale / one.scale - 1) < _SCALE
            and max(abs(other.shift_x - one.shift_x), abs(other.shift_y - one.shift_y)) < _SHIFT
        }
        # The largest sum over frames of the one clip, each with a frame of the other that is no earlier than the last.
        sums = np.zeros(len(long))
        for i in range(len(short)):
            row = np.array([consistent.get((i, j), 0.0) for j in range(len(long))])
            sums = np.maximum(sums, np.maximum.accumulate(sums) + row)
        best = max(best, float(sums.max()))
    return best / len(short)


def matches(a: FrameKeypoints, b: FrameKeypoints) -> bool:
    """Whether two frames show the same picture at all."""
    place = register(a, b)
    return place is not None and _grade(a, b, place) > 0


def _grade(a: FrameKeypoints, b: FrameKeypoints, place: Place) -> float:
    return min(1.0, max(0.0, (agreement(a, b, place) - _DIFFERENT) / (_SAME - _DIFFERENT)))
