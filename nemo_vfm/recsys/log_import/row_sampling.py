# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Keeps a share of a log's sessions or samples: the same ones in any order.

Shape letters: B samples.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from nemo_vfm.sparse.log_chunk import LogChunk
from nemo_vfm.sparse.row_fingerprint import mix64_
from nemo_vfm.sparse.tables.counter_hash import name_salt, signed_salt

KeepBy = Literal["session", "sample"]
RULE = "down-sampling"


@dataclass(frozen=True, slots=True)
class RowSampling:
    """Keeps a sample if a hash of its session, or of its own number, is below the share.

    Args:
        fraction: of sessions or samples that stays, above 0 and at most 1.
        by: what is drawn.
        seed: of the draw.
    """

    fraction: float
    by: KeepBy
    seed: int

    def kept(self, chunk: LogChunk, dropped: Counter[str]) -> LogChunk:
        """The samples that stay; how many do not is added to `dropped`."""
        stays_B = self.stays(chunk)
        dropped[RULE] += len(chunk) - int(stays_B.sum())
        return chunk.select(stays_B.nonzero().squeeze(1))

    def stays(self, chunk: LogChunk) -> Tensor:
        """Whether each sample stays: bool, (B,)."""
        numbers_B = chunk.session_B if self.by == "session" else chunk.ids_B
        mixed_B = mix64_(numbers_B + signed_salt(name_salt(self.seed, self.by))).numpy().view(np.uint64)
        return torch.from_numpy(mixed_B / 2.0**64 < self.fraction)
