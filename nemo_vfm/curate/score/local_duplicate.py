"""Finds clips that show the same pictures cropped, scaled or at another speed, by keypoints."""

import base64
from collections.abc import Sequence
from functools import lru_cache

from nemo_vfm.curate.record.footage import ClipFrames
from nemo_vfm.curate.record.ledger import ClipRecord
from nemo_vfm.curate.score.near_duplicate import largest_kept, max_alike
from nemo_vfm.dedup.frame_candidates import candidates, matches, shown_share
from nemo_vfm.dedup.keypoints import as_bytes, describe, from_bytes
from nemo_vfm.dedup.sequence import Pair

_RATE, _MIN_FRAMES, _MAX_FRAMES = 4.0, 8, 32


class LocalDuplicate:
    """Finds clips that were cropped, scaled, recoded, cut out of one another, or play at another speed.

    Four frames a second are registered by SIFT keypoints and compared where they overlap; `local_similarity` is the
    share of the shorter clip that the other one shows at one place and in order. It needs no weights. It does not find
    mirrored copies, or pictures without detail, such as a clear sky; `NearDuplicate` finds those by their whole frames.
    Clips of one file are never copies of each other: a speaker who hardly moves looks the same in each of them.
    Of clips that are alike, the one with the highest resolution is kept, then the longest, then the best.

    Args:
        quality: the score by which the better of two copies is chosen; higher is better, and it may be absent.
    """

    def __init__(self, *, quality: str = "sharpness") -> None:
        self.quality = quality

    def columns(self) -> Sequence[str]:
        return ("local_similarity",)

    def remember(self, footage: ClipFrames) -> str:
        """Keypoints and a small copy of each sampled frame, as base64."""
        numbers = footage.per_second(_RATE, at_most=_MAX_FRAMES)
        if len(numbers) < _MIN_FRAMES:
            numbers = footage.evenly(_MIN_FRAMES)
        return base64.b64encode(as_bytes([describe(frame) for frame in footage.frames(numbers)])).decode()

    def likeness(self, vectors: Sequence[str]) -> list[float]:
        """For each clip, its similarity to the clip most like it; 0 if there is none."""
        return max_alike(_compare_all(tuple(vectors)), len(vectors))

    def duplicates(self, clips: Sequence[ClipRecord], vectors: Sequence[str], above: float) -> dict[int, int]:
        """`{position of a duplicate: position of the clip to keep}`."""
        found = [(pair.a, pair.b) for pair in _compare_all(tuple(vectors)) if pair.cosine > above]
        pairs = [(a, b) for a, b in found if clips[a].source != clips[b].source]
        return largest_kept(clips, pairs, self.quality)


@lru_cache(maxsize=2)
def _compare_all(vectors: tuple[str, ...]) -> list[Pair]:
    """Cached, since other thresholds need the same pairs."""
    clips = [from_bytes(base64.b64decode(text)) for text in vectors]
    probes = candidates([[frame.bits_NB for frame in clip] for clip in clips])
    alike = [(a, b) for (a, b), pairs in probes.items() if any(matches(clips[a][i], clips[b][j]) for i, j in pairs)]
    return [Pair(a, b, shown_share(clips[a], clips[b])) for a, b in alike]
