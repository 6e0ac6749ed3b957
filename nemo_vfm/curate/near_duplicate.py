# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Footage in, a short text that stands for it; then all texts in, and which clips say the same out."""

import base64
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from nemo_vfm.curate.footage import Footage
from nemo_vfm.curate.stage import ClipRecord
from nemo_vfm.dedup.cosine import nearest, pairs_above
from nemo_vfm.dedup.embed import embed
from nemo_vfm.dedup.groups import duplicates


class NearDuplicate:
    """Finds clips that show the same at another size, quality or frame rate; no weights.

    Eight frames' perceptual hashes and a colour histogram make one vector a clip; `similarity` is the cosine to
    the clip most like it. It does not see copies that are trimmed or mirrored. A rule on `similarity` decides; of clips
    that are alike the one of highest resolution stays, then the sharpest, then the longest.

    Args:
        num_frames: frames that are hashed, spread over the clip.
        hash_weight: 0 to 1, the part of the cosine that hashes make; colours make the rest.
    """

    def __init__(self, *, num_frames: int = 8, hash_weight: float = 0.7) -> None:
        if num_frames < 1 or not 0 < hash_weight < 1:
            raise ValueError(f"num_frames {num_frames} must be at least 1 and hash_weight {hash_weight} within 0 and 1")
        self.num_frames, self.hash_weight = num_frames, hash_weight

    def columns(self) -> Sequence[str]:
        """The one score."""
        return ("similarity",)

    def remember(self, footage: Footage) -> str:
        """The clip's unit vector, as base64 of float16."""
        firsts = footage.pairs(16)[::2]
        chosen = np.linspace(0, len(firsts) - 1, self.num_frames).round().astype(int)
        vector = embed(footage.frames([firsts[place] for place in chosen]), hash_weight=self.hash_weight)
        return base64.b64encode(vector.astype("<f2").tobytes()).decode()

    def likeness(self, vectors: Sequence[str]) -> list[float]:
        """Of each clip to the other clip most like it."""
        return [float(value) for value in nearest(_decode(vectors))] if vectors else []

    def duplicates(self, clips: Sequence[ClipRecord], vectors: Sequence[str], above: float) -> dict[int, int]:
        """`{position of a duplicate: position of the clip to keep}`."""
        if not clips:
            return {}
        preferences = [
            (float(clip.width * clip.height), float(clip.scores.get("sharpness", 0.0)), clip.duration_s)
            for clip in clips
        ]
        return duplicates(preferences, [(pair.a, pair.b) for pair in pairs_above(_decode(vectors), above)])


def _decode(vectors: Sequence[str]) -> NDArray[np.float32]:
    rows = np.stack([np.frombuffer(base64.b64decode(text), dtype="<f2") for text in vectors]).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows
