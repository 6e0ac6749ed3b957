"""Computes rotary positions in blocks of a fixed size and looks them up.

A vectorised cosine and a scalar one differ in the last bit, and how many values are computed at once decides which is
taken. Blocks of one size give a position the same bits in every batch.
Where positions depend on the length of a text (LongRoPE), that is the length of its room from its first token on, so
its keys stay valid however long it gets.
Shape letters: R rows, E the rotated part of a head.
"""

import torch
from torch import Tensor

from nemo_vfm.models.blocks.text.decoder import Rotation
from nemo_vfm.models.blocks.text.rope_scaling import LongRope
from nemo_vfm.models.blocks.text_rope import TextRope

_BLOCK = 1024


class RotaryTable:
    """Cosines and sines, computed as far as texts have come.

    Args:
        rope: whose they are.
        rotated: E.
        device: where they are wanted.
    """

    def __init__(self, rope: TextRope, rotated: int, device: torch.device) -> None:
        self._rope, self._rotated, self._device = rope, rotated, device
        scaling = rope.long_context
        self._trained_on = scaling.trained_on if isinstance(scaling, LongRope) else None
        #: Of a text of each kind: usual ones and, where these differ, longer ones.
        self._lengths = [1] if self._trained_on is None else [1, self._trained_on + 1]
        self._known = [self._block(0, length) for length in self._lengths]

    def at(self, places_R: Tensor, lengths_R: Tensor) -> Rotation:
        """(1, R, 1, E) each.

        Args:
            places_R: positions, on the CPU.
            lengths_R: of the texts they are in, on the CPU.
        """
        while len(self._known[0][0]) <= int(places_R.max()):
            for kind, (cos, sin) in enumerate(self._known):
                more_cos, more_sin = self._block(len(cos), self._lengths[kind])
                self._known[kind] = torch.cat([cos, more_cos]), torch.cat([sin, more_sin])
        places = places_R.to(self._device)
        cos, sin = (one[places][None] for one in self._known[0])
        if self._trained_on is None:
            return cos, sin
        is_long = (lengths_R > self._trained_on).to(self._device)[None, :, None, None]
        long_cos, long_sin = (one[places][None] for one in self._known[1])
        return torch.where(is_long, long_cos, cos), torch.where(is_long, long_sin, sin)

    def _block(self, first: int, length: int) -> Rotation:
        places = torch.arange(first, first + _BLOCK, device=self._device)[None]
        cos, sin = self._rope.table(self._rotated, places, places.new_full((1, 1), length))
        return cos[0], sin[0]
