"""Keeps a share of a log's sessions, samples or negatives: the same ones in any order.

Shape letters: B samples.
"""

from collections import Counter
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from nemo_vfm.sparse.log_chunk import LogChunk
from nemo_vfm.sparse.row_fingerprint import mix64_
from nemo_vfm.sparse.tables.counter_hash import name_salt, signed_salt

KeepBy = Literal["session", "sample"]
RULE, NEGATIVES = "down-sampling", "down-sampling of negatives"


@dataclass(frozen=True, slots=True)
class RowSampling:
    """Keeps a sample if a hash of its session, or of its own number, is below the share.

    Args:
        fraction: of sessions or samples that stays, above 0 and at most 1.
        by: what is drawn.
        seed: of the draw.
        negatives: of the samples without a label above 0 that stays of these, by their own numbers. What stays of them
            weighs so much more, so that all sums over the log keep their expected value.
    """

    fraction: float
    by: KeepBy
    seed: int
    negatives: float = 1.0

    def kept(self, chunk: LogChunk, dropped: Counter[str]) -> LogChunk:
        """The samples that stay; how many do not is added to `dropped`."""
        if self.fraction < 1:
            numbers_B = chunk.session_B if self.by == "session" else chunk.ids_B
            chunk = _selected(chunk, self._drawn(numbers_B, self.by, self.fraction), dropped, RULE)
        return chunk if self.negatives == 1 else self._with_fewer_negatives(chunk, dropped)

    def _with_fewer_negatives(self, chunk: LogChunk, dropped: Counter[str]) -> LogChunk:
        positive_B = torch.stack([label_B > 0 for label_B in chunk.labels.values()]).any(0)
        weight_B = torch.ones(len(chunk)) if chunk.weight_B is None else chunk.weight_B
        chunk = replace(chunk, weight_B=weight_B.where(positive_B, weight_B / self.negatives))
        return _selected(chunk, positive_B | self._drawn(chunk.ids_B, "negative", self.negatives), dropped, NEGATIVES)

    def _drawn(self, numbers_B: Tensor, what: str, share: float) -> Tensor:
        mixed_B = mix64_(numbers_B + signed_salt(name_salt(self.seed, what))).numpy().view(np.uint64)
        return torch.from_numpy(mixed_B / 2.0**64 < share)


def _selected(chunk: LogChunk, stays_B: Tensor, dropped: Counter[str], rule: str) -> LogChunk:
    dropped[rule] += len(chunk) - int(stays_B.sum())
    return chunk.select(stays_B.nonzero().squeeze(1))
