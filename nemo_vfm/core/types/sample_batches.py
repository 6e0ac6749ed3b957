"""Holds the batches that the loader gives to a task: of videos, of packed videos, of tokens.

Shape letters: B batch, C channels, T frames, H height, W width, L text tokens, D width of a text token,
S tokens of a sequence, X positions of a packed sequence.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

from nemo_vfm.core.latent_rows import unpack_latents

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(slots=True)
class SampleBatch:
    """What every batch of ours has, see `Batch`. Each further field has one entry a sample, or is empty or None."""

    index: int  #: see `Batch`
    keys: tuple[str, ...]  #: see `Batch`
    weight_B: "Tensor"  #: see `Batch`

    def __len__(self) -> int:
        return len(self.keys)

    def cut(self, parts: int) -> "Sequence[SampleBatch]":
        count = max(1, min(parts, len(self)))
        borders = [len(self) * n // count for n in range(count + 1)]
        return [replace(self, **_slice_fields(self, begin, end)) for begin, end in itertools.pairwise(borders)]

    def to(self, device: "torch.device | str") -> Self:
        import torch

        present = {name: getattr(self, name) for name in self.__dataclass_fields__}
        tensors = {name: value for name, value in present.items() if isinstance(value, torch.Tensor)}
        moved: dict[str, Any] = {name: tensor.to(device, non_blocking=True) for name, tensor in tensors.items()}
        if isinstance(self, _CaptionedBatch):
            moved["members"] = {name: tensor.to(device, non_blocking=True) for name, tensor in self.members.items()}
        return replace(self, **moved)


@dataclass(slots=True)
class TokenBatch(SampleBatch):
    """Rows of tokens, all of one length."""

    tokens_BS: "Tensor"  #: int64
    labels_BS: "Tensor"  #: the token after each of `tokens_BS`, int64; IGNORED where none is asked for
    documents: tuple[tuple[int, ...], ...] = ()  #: of each row, how long the documents are that do not see each other


@dataclass(slots=True)
class _CaptionedBatch(SampleBatch):
    """Samples with text: embedded where embeddings are cached, and else only captions."""

    captions: tuple[str, ...]
    fps_B: "Tensor"  #: frames per second of each sample, float32
    text_BLD: "Tensor | None" = None
    text_mask_BL: "Tensor | None" = None  #: True at real text tokens
    labels: tuple[Mapping[str, float | str], ...] = ()  #: what is known of each sample; none where latents are cached
    #: what the data was asked for by name, such as actions: (B, ...) each, in the dtype that was stored.
    members: "Mapping[str, Tensor]" = field(default_factory=dict)


@dataclass(slots=True)
class VideoBatch(_CaptionedBatch):
    """Videos of one shape: either their latents or their pixels."""

    latents_BCTHW: "Tensor | None" = None
    video_BCTHW: "Tensor | None" = None  #: pixels, uint8


@dataclass(slots=True)
class PackedBatch(_CaptionedBatch):
    """Latents of videos of any shapes, laid one after another."""

    latents_XC: "Tensor" = field(kw_only=True)  #: positions of one sample after another, time slowest, width fastest
    sizes_THW: tuple[tuple[int, int, int], ...] = field(kw_only=True)  #: frames, rows and columns of each sample
    apart: int = 0  #: to be run one by one, in so many pieces: what packing is compared with; 0 is together

    def cut(self, parts: int) -> "list[PackedBatch | VideoBatch]":
        """The same samples as exactly so many batches, of nearly as many positions each.

        Data ranks have different numbers of samples, and those that share weights must call the model equally often.
        So where there are fewer, the last one comes again with weight 0.
        """
        pieces: list[PackedBatch | VideoBatch] = []
        if self.apart:
            pieces += self.unpack()
        else:
            ends = list(itertools.accumulate((math.prod(size) for size in self.sizes_THW), initial=0))
            # Where to cut into parts of nearly as many positions, none empty.
            last, count, borders = len(self), min(parts, len(self)), [0]
            for part in range(1, count):
                aim = ends[-1] * part / count
                nearest = min(range(last + 1), key=lambda place: abs(ends[place] - aim))
                borders.append(min(max(nearest, borders[-1] + 1), last - (count - part)))
            for begin, end in itertools.pairwise([*borders, last]):
                rows = self.latents_XC[ends[begin] : ends[end]]
                pieces.append(replace(self, **_slice_fields(self, begin, end, "latents_XC", "apart"), latents_XC=rows))
        again = replace(pieces[-1], weight_B=pieces[-1].weight_B * 0)
        return pieces + [again] * ((self.apart or parts) - len(pieces))

    def unpack(self) -> list[VideoBatch]:
        """Each sample as a batch of one shape."""
        videos = unpack_latents(self.latents_XC, self.sizes_THW)
        each = (_slice_fields(self, place, place + 1, "latents_XC", "sizes_THW", "apart") for place in range(len(self)))
        return [VideoBatch(self.index, latents_BCTHW=video, **one) for video, one in zip(videos, each, strict=True)]


def _slice_fields(batch: SampleBatch, begin: int, end: int, *other: str) -> dict[str, Any]:
    """The fields with one entry a sample, of the samples begin..end; those named in `other` have none."""
    found: dict[str, Any] = {}
    for name in batch.__dataclass_fields__.keys() - {"index", *other}:
        value = getattr(batch, name)
        if isinstance(value, Mapping):  # tensors by name
            found[name] = {key: tensor[begin:end] for key, tensor in value.items()}
        else:
            found[name] = value if value is None else value[begin:end]
    return found


#: A label that has no loss.
IGNORED = -100
#: Inputs of a model that say how samples are packed. They are read on the host, and change no other input's shape.
LAID = ("sizes_N3", "lengths_N")
