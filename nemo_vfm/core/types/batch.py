# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Declares the batches that the loader gives to a task.

Shape letters: B batch, C channels, T frames, H height, W width, L text tokens, D width of a text token,
S tokens of a sequence, X positions of a packed sequence.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from nemo_vfm.core.latent_rows import videos_of

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(slots=True)
class Batch:
    """Samples of one shape, or packed ones of any shapes, as the loader gives them to a task.

    Exactly one of `latents_BCTHW`, `latents_XC`, `video_BCTHW` and `tokens_BS` is given; likewise a batch of videos has
    `text_BLD` where embeddings are cached and else only captions.
    """

    index: int  #: g, the number of this global batch since the start of training
    keys: tuple[str, ...]  #: one clip id a sample
    captions: tuple[str, ...]
    weight_B: "Tensor"  #: loss weight; 0 where a bad sample kept its place
    fps_B: "Tensor"  #: frames per second of each sample, float32
    latents_BCTHW: "Tensor | None" = None
    video_BCTHW: "Tensor | None" = None  #: pixels, uint8
    text_BLD: "Tensor | None" = None
    text_mask_BL: "Tensor | None" = None  #: True at real text tokens
    labels: tuple[Mapping[str, float | str], ...] = ()  #: what is known of each sample; none where latents are cached
    latents_XC: "Tensor | None" = None  #: packed: positions of one sample after another, time slowest, width fastest
    sizes_THW: tuple[tuple[int, int, int], ...] = ()  #: packed: latent frames, rows and columns of each sample
    apart: int = 0  #: packed, but to be run one by one, in so many pieces: what packing is compared with; 0 is together
    tokens_BS: "Tensor | None" = None  #: text, int64
    labels_BS: "Tensor | None" = None  #: the token after each of `tokens_BS`, int64; IGNORED where none is asked for
    documents: tuple[tuple[int, ...], ...] = ()  #: of each row, how long the documents are that do not see each other

    def __len__(self) -> int:
        return len(self.keys)

    def cut(self, parts: int) -> "list[Self]":
        """The same samples as so many batches, one after the other; fewer where there are fewer samples of one shape.

        Packed samples are never fewer: data ranks have different numbers of them, and those that share weights must
        call the model equally often. So the last one comes again with weight 0.
        """
        if not self.sizes_THW:
            count = min(parts, len(self))
            return self._between([len(self) * n // count for n in range(count + 1)]) if count > 1 else [self]
        ends = list(itertools.accumulate((math.prod(size) for size in self.sizes_THW), initial=0))
        pieces = self.alone() if self.apart else self._between(_even(ends, min(parts, len(self))))
        again = replace(pieces[-1], weight_B=pieces[-1].weight_B * 0)
        return pieces + [again] * ((self.apart or parts) - len(pieces))

    def alone(self) -> "list[Self]":
        """Each sample of a packed batch as a batch of one shape."""
        assert self.latents_XC is not None
        videos = videos_of(self.latents_XC, self.sizes_THW)
        each = self._between(list(range(len(self) + 1)))
        return [
            replace(one, latents_BCTHW=video, latents_XC=None, sizes_THW=(), apart=0)
            for one, video in zip(each, videos, strict=True)
        ]

    def _between(self, borders: Sequence[int]) -> "list[Self]":
        import torch

        present = {name: getattr(self, name) for name in self.__dataclass_fields__ if name not in ("index", "apart")}
        by_sample: dict[str, Any] = {
            name: value for name, value in present.items() if isinstance(value, torch.Tensor) or value
        }
        pack = by_sample.pop("latents_XC", None)
        ends = list(itertools.accumulate((math.prod(size) for size in self.sizes_THW), initial=0))
        return [
            replace(
                self,
                **{name: value[begin:end] for name, value in by_sample.items()},
                latents_XC=None if pack is None else pack[ends[begin] : ends[end]],
            )
            for begin, end in itertools.pairwise(borders)
        ]

    def to(self, device: "torch.device | str") -> Self:
        """The same batch with every tensor on `device`."""
        import torch

        present = {name: getattr(self, name) for name in self.__dataclass_fields__}
        tensors = {name: value for name, value in present.items() if isinstance(value, torch.Tensor)}
        moved: dict[str, Any] = {name: tensor.to(device, non_blocking=True) for name, tensor in tensors.items()}
        return replace(self, **moved)


def _even(ends: Sequence[int], parts: int) -> list[int]:
    """Where to cut packed samples that end at these positions into parts of nearly as many positions, none empty."""
    last, borders = len(ends) - 1, [0]
    for part in range(1, parts):
        aim = ends[-1] * part / parts
        nearest = min(range(last + 1), key=lambda place: abs(ends[place] - aim))
        borders.append(min(max(nearest, borders[-1] + 1), last - (parts - part)))
    return [*borders, last]


#: A label that has no loss.
IGNORED = -100


#: Inputs of a model that say how samples are packed. They are read on the host, and change no other input's shape.
LAID = ("sizes_N3", "lengths_N")
