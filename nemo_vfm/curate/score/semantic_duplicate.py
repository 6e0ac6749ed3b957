"""Embeds clips by the kind of picture they show, and finds clips of similar content by their vectors."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from nemo_vfm.core.types.media_types import Frames
from nemo_vfm.curate.record.footage import ClipFrames
from nemo_vfm.curate.record.ledger import ClipRecord
from nemo_vfm.curate.score.near_duplicate import number
from nemo_vfm.dedup.color_layout import ColourLayoutEmbedder
from nemo_vfm.dedup.semantic import Matches, as_text, as_vectors, match


class Embedder(Protocol):
    """Turns frames into a vector without weights."""

    def frame_indices(self, num_frames: int) -> list[int]:
        """The numbers of the frames it needs from a clip of `num_frames`, ascending."""
        ...

    def embed(self, frames_THWC: Frames) -> NDArray[np.float32]:
        """A vector of length 1 at most, of the same width for every clip."""
        ...


class VectorDuplicates:
    """Compares clips by the cosine of their vectors, in overlapping clusters where there are many.

    `SemanticDuplicate`, `LearnedDuplicate` and `CosmosEmbed` differ in how a vector is made.
    """

    quality: str  #: the score by which the better of two clips is chosen
    seed: int  #: of the clusters

    def likeness(self, vectors: Sequence[str]) -> list[float]:
        """Cosine of each clip to the other clip most like it."""
        return [max(0.0, float(value)) for value in _match_all(tuple(vectors), self.seed).nearest_N] if vectors else []

    def duplicates(self, clips: Sequence[ClipRecord], vectors: Sequence[str], above: float) -> dict[int, int]:
        """`{position of a duplicate: position of the clip to keep}`."""
        if not clips:
            return {}

        preferences = [(float(c.width * c.height), number(c, self.quality), c.duration_s, c.clip.id) for c in clips]
        order = sorted(range(len(clips)), key=preferences.__getitem__, reverse=True)  # the one to keep first
        matches = _match_all(tuple(vectors[place] for place in order), self.seed)
        return {order[item]: order[kept] for item, kept in sorted(matches.duplicates(above).items())}


class SemanticDuplicate(VectorDuplicates):
    """Finds clips of similar content, though no frame is a copy; without weights (for those, see `learned`).

    Vectors are compared inside overlapping clusters. Of a group the clip with the highest resolution is kept, then the
    best, the longest, and the one with the highest id; a clip is dropped only for one that is kept.

    Args:
        embedder: makes the vectors; `ColourLayoutEmbedder` uses colours, profile and grain: clips of one drive are
            alike at 0.8.
        quality: the score by which the better of two clips is chosen; higher is better, and it may be absent.
        seed: of the clusters, which only more than 2000 clips have.
    """

    def __init__(
        self, *, embedder: Embedder = ColourLayoutEmbedder(), quality: str = "sharpness", seed: int = 0
    ) -> None:
        self.embedder, self.quality, self.seed = embedder, quality, seed

    def columns(self) -> Sequence[str]:
        return ("semantic_similarity",)

    def remember(self, footage: ClipFrames) -> str:
        """The clip's vector, as text."""
        return as_text(self.embedder.embed(footage.frames(self.embedder.frame_indices(footage.num_frames))))


@lru_cache(maxsize=2)
def _match_all(vectors: tuple[str, ...], seed: int) -> Matches:
    """Cached, since other thresholds need the same matches."""
    return match(as_vectors(vectors), seed=seed)
