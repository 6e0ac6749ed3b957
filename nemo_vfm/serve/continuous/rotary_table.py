# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Computes rotary positions in blocks of a fixed size and looks them up.

A vectorised cosine and a scalar one differ in the last bit, and how many values are computed at once decides which is
taken. Blocks of one size give a position the same bits in every batch.
Shape letters: R rows, E the rotated part of a head.
"""

import torch
from torch import Tensor

from nemo_vfm.models.gpt import GPT

_BLOCK = 1024


class RotaryTable:
    """Cosines and sines of a model, computed as far as texts have come.

    Args:
        model: whose positions they are.
    """

    def __init__(self, model: GPT) -> None:
        self._model, self._device = model, model.embedding.weight.device
        self._cos, self._sin = self._block(0)

    def at(self, places_R: Tensor) -> tuple[Tensor, Tensor]:
        """(1, R, 1, E) each, of positions on the CPU."""
        while len(self._cos) <= int(places_R.max()):
            cos, sin = self._block(len(self._cos))
            self._cos, self._sin = torch.cat([self._cos, cos]), torch.cat([self._sin, sin])
        places = places_R.to(self._device)
        return self._cos[places][None], self._sin[places][None]

    def _block(self, first: int) -> tuple[Tensor, Tensor]:
        places = torch.arange(first, first + _BLOCK, device=self._device)[None]
        cos, sin = self._model.rope.table(self._model.rotated, places)
        return cos[0], sin[0]
