"""Drops rows whose text means nearly the same as an earlier row's, by the embeddings of a text encoder.

Shape letters: B texts (one), L tokens of a text, N rows that passed, D width of an embedding.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from nemo_vfm.core.types.encoders import TextEncoder
from nemo_vfm.synth.filters.turn_texts import Turns, join_turns, require_turns
from nemo_vfm.synth.programs.row_program import Draft

_INITIAL_ROWS = 256  # of the array, which doubles when it is full


class SimilarRows:
    """Keeps the first of rows whose embeddings have a cosine above a threshold; an embedding is the mean over tokens.

    If the encoder truncates long texts, only their beginnings are compared. Rows are encoded one at a time, while the
    model's answers wait: an encoder slower than the model slows down the run. Each row that passes takes 4 D to 8 D
    bytes of memory.

    Args:
        encoder: of texts, such as `HashedNgrams`, or `TransformersTextEncoder` with a folder of a sentence encoder.
        threshold: cosine above which the later row is dropped, from -1 to 1; a good value depends on the encoder.
        turns: whose turns of the conversation are compared.
    """

    def __init__(self, *, encoder: TextEncoder, threshold: float = 0.9, turns: Turns = "user") -> None:
        require_turns(turns)
        if not -1 <= threshold <= 1:
            raise ValueError(f"threshold must be a cosine from -1 to 1, got {threshold}")
        self.encoder, self.threshold, self.turns = encoder, threshold, turns

    def make_rule(self) -> Callable[[Draft], str | None]:
        """See `OrderedFilter`."""
        vectors_ND, count = np.empty((_INITIAL_ROWS, self.encoder.text_shape()[1]), dtype=np.float32), 0

        def rule(draft: Draft) -> str | None:
            nonlocal vectors_ND, count
            text_BLD, mask_BL = self.encoder.encode([join_turns(draft, self.turns)])
            # Its length is 1; or 0 if the encoder found no token, and then the row is similar to no other.
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
