"""Computes signatures of a clip's frames, and finds clips that share frames by their signatures."""

import base64
import hashlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import combinations

import cv2
import numpy as np

from nemo_vfm.curate.record.footage import ClipFrames
from nemo_vfm.curate.record.ledger import ClipRecord
from nemo_vfm.dedup.sequence import RATE, Kept, Pair, find_pairs, kept_by_likeness, signature

_MAX_SECONDS = 600  # longer clips are sampled less often, so that only copies of the same length are found
_LEAST = 0.3  # a similarity below this is reported as 0: it is between different shots


class NearDuplicate:
    """Finds clips that are the same at another size, quality or frame rate, also if one is an excerpt of the other.

    Eight signatures a second are aligned at every offset; `similarity` is the share of the shorter clip that the longer
    one holds, for the clip most like it: above 0.9 for copies, below 0.7 for other shots of the same film (measured on
    Sintel's trailer). It needs no weights, and does not find copies that are mirrored, cropped or played at another
    speed. Only clips that are directly alike are grouped; of these the one with the highest resolution is kept, then
    the longest, since it contains the others, then the best. A clip without content, such as a black one, is like no
    other unless their decoded frames are equal.

    Args:
        quality: the score by which the better of two copies is chosen; higher is better, and it may be absent.
    """

    def __init__(self, *, quality: str = "sharpness") -> None:
        self.quality = quality

    def columns(self) -> Sequence[str]:
        return ("similarity",)

    def remember(self, footage: ClipFrames) -> str:
        """A hash of the decoded frames, and their signatures as base64 of float16."""
        frames = footage.frames(footage.per_second(RATE, at_most=int(_MAX_SECONDS * RATE)))
        signatures = np.stack([signature(frame) for frame in frames]).astype("<f2")
        small = [cv2.resize(frame, (32, 32), interpolation=cv2.INTER_AREA) for frame in frames]
        digest = hashlib.sha256(np.stack(small).tobytes()).hexdigest()[:32]
        return f"{digest}:{signatures.shape[1]}:{base64.b64encode(signatures.tobytes()).decode()}"

    def likeness(self, vectors: Sequence[str]) -> list[float]:
        """For each clip, its similarity to the clip most like it; 0 if there is none."""
        return max_alike(_compare_all(tuple(vectors), _LEAST), len(vectors))

    def duplicates(self, clips: Sequence[ClipRecord], vectors: Sequence[str], above: float) -> dict[int, int]:
        """`{position of a duplicate: position of the clip to keep}`."""
        found = _compare_all(tuple(vectors), min(above, _LEAST))
        return largest_kept(clips, [(pair.a, pair.b) for pair in found if pair.cosine > above], self.quality)


def max_alike(pairs: Iterable[Pair], count: int) -> list[float]:
    """For each of `count` clips, its similarity to the clip most like it; 0 if there is none."""
    best = [0.0] * count
    for pair in pairs:
        best[pair.a], best[pair.b] = max(best[pair.a], pair.cosine), max(best[pair.b], pair.cosine)
    return best


def largest_kept(clips: Sequence[ClipRecord], pairs: Sequence[tuple[int, int]], quality: str) -> dict[int, int]:
    """`{duplicate: the one kept}`: the clip with the highest resolution is kept, then the longest, then the best."""
    preferences = [(float(clip.width * clip.height), clip.duration_s, number(clip, quality)) for clip in clips]
    return kept_by_likeness(preferences, pairs)


def number(clip: ClipRecord, column: str) -> float:
    """A score as a number; 0 if it is absent or a word."""
    value = clip.scores.get(column, 0.0)
    return 0.0 if isinstance(value, str) else float(value)


@lru_cache(maxsize=2)
def _compare_all(vectors: tuple[str, ...], above: float) -> list[Pair]:
    """Equal decoded frames first, then aligned sequences; cached, since other thresholds need the same pairs."""
    equal: defaultdict[str, list[int]] = defaultdict(list)
    for place, text in enumerate(vectors):
        equal[text.partition(":")[0]].append(place)
    exact = {pair for places in equal.values() for pair in combinations(places, 2)}
    signatures: list[Kept] = []
    for text in vectors:
        _, width, data = text.split(":")
        signatures.append(np.frombuffer(base64.b64decode(data), dtype="<f2").reshape(-1, int(width)))
    aligned = [pair for pair in find_pairs(signatures, above) if (pair.a, pair.b) not in exact]
    return [*(Pair(a, b, 1.0) for a, b in sorted(exact)), *aligned]
