"""Drops rows whose text means nearly what an earlier row's does, by the vectors of a text encoder.

Shape letters: N rows, L tokens of a text, D width of a vector.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from nemo_vfm.core.types.encoders import TextEncoder
from nemo_vfm.synth.filters.turn_texts import Turns, join_turns, require_turns
from nemo_vfm.synth.programs.row_program import Draft

_FIRST_ROOM = 256  # rows; it doubles where there are more


class SimilarRows:
    """Keeps the first of rows whose vectors have a cosine above a threshold; a vector is the mean over a text's tokens.

    An encoder that cuts long texts off compares their beginnings. Vectors are made one row at a time, while answers
    wait: an encoder that takes longer than the model holds up the run. 4 D bytes of each row that passes are kept, and
    up to twice that.

    Args:
        encoder: of texts, such as `HashedNgrams`, or `TransformersTextEncoder` with a folder of a sentence encoder.
        threshold: cosine above which the later row goes, from -1 to 1; it depends on the encoder.
        turns: whose text is compared.
    """

    def __init__(self, *, encoder: TextEncoder, threshold: float = 0.9, turns: Turns = "user") -> None:
        require_turns(turns)
        if not -1 <= threshold <= 1:
            raise ValueError(f"threshold must be a cosine from -1 to 1, got {threshold}")
        self.encoder, self.threshold, self.turns = encoder, threshold, turns

    def make_rule(self) -> Callable[[Draft], str | None]:
        """See `OrderedFilter`."""
        vectors_ND, count = np.empty((_FIRST_ROOM, self.encoder.text_shape()[1]), dtype=np.float32), 0

        def rule(draft: Draft) -> str | None:
            nonlocal vectors_ND, count
            text_BLD, mask_BL = self.encoder.encode([join_turns(draft, self.turns)])
            # Of length 1, or zeros where the encoder found no token: such a row is like no other.
            sum_D = text_BLD[0][mask_BL[0]].float().sum(dim=0).cpu().numpy().astype(np.float64)
            vector_D: NDArray[np.float32] = (sum_D / max(float(np.linalg.norm(sum_D)), 1e-12)).astype(np.float32)
            if count and float((vectors_ND[:count] @ vector_D).max()) > self.threshold:
                return "similar row"
            if count == len(vectors_ND):
                vectors_ND = np.concatenate([vectors_ND, np.empty_like(vectors_ND)])
            vectors_ND[count] = vector_D
            count += 1
            return None

        return rule
