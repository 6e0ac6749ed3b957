# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Collates samples of one shape into a VideoBatch; a bad sample becomes zeros with loss weight 0 and a fault.

Shape letters: B batch, C channels, T frames, H height, W width, L text tokens, D width of a text token.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from nemo_vfm.core.types.batch import VideoBatch
from nemo_vfm.data.batching.faults import Fault
from nemo_vfm.data.shards.safetensors_views import Stored
from nemo_vfm.data.shards.sample_reader import Layout, Sample
from nemo_vfm.data.shards.shard_files import Entry


def collate(
    index: int, entries: Sequence[Entry], samples: Sequence[Sample | Fault], layout: Layout
) -> tuple[VideoBatch, list[Fault | None]]:
    """The batch and, a sample each, what was wrong with it.

    Args:
        index: number of the global batch.
        entries: of the samples, in order.
        samples: what was read, or why not.
        layout: what each sample must look like.
    """
    tensors = {name: _empty((len(entries), *shape), dtype) for name, (dtype, shape) in layout.items()}
    rows = {name: tensor.view(torch.uint8).reshape(len(entries), -1).numpy() for name, tensor in tensors.items()}
    faults: list[Fault | None] = []
    for place, (entry, sample) in enumerate(zip(entries, samples, strict=True)):
        fault = sample if isinstance(sample, Fault) else _misfit(entry, sample, layout)
        if not isinstance(sample, Fault) and fault is None:
            for name, row in rows.items():
                row[place] = sample.tensors[name].data
        faults.append(fault)
    for place, fault in enumerate(faults):
        if fault is not None:
            _blank(tensors, place)
    return _batch(index, entries, samples, faults, tensors), faults


def _empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Uninitialised; in a worker straight in shared memory, which spares the copy on the way to the trainer."""
    if torch.utils.data.get_worker_info() is None:
        return torch.empty(shape, dtype=dtype)
    flat = torch.empty(0, dtype=torch.uint8)
    count = dtype.itemsize * math.prod(shape)
    flat.set_(torch.UntypedStorage._new_shared(count, device="cpu"))  # type: ignore[no-untyped-call]
    return flat.view(dtype).view(shape)


def _misfit(entry: Entry, sample: Sample, layout: Layout) -> Fault | None:
    for name, (dtype, shape) in layout.items():
        stored: Stored | None = sample.tensors.get(name)
        if stored is None or (stored.dtype, stored.shape) != (dtype, shape):
            found = "nothing" if stored is None else f"{stored.dtype} {stored.shape}"
            return Fault(entry.key, entry.shard, f"its {name} is {found}, expected {dtype} {shape}")
        # One NaN in a latent would reach every weight of the model in one step.
        if not stored.is_finite():
            return Fault(entry.key, entry.shard, f"its {name} holds NaN or infinity")
    return None


def _blank(tensors: dict[str, Tensor], place: int) -> None:
    for name, tensor in tensors.items():
        tensor[place] = 0
        if name == "mask":
            tensor[place, :1] = 1  # attention over no token at all is NaN, and NaN times weight 0 is NaN


def _batch(
    index: int,
    entries: Sequence[Entry],
    samples: Sequence[Sample | Fault],
    faults: Sequence[Fault | None],
    tensors: dict[str, Tensor],
) -> VideoBatch:
    mask = tensors.get("mask")
    return VideoBatch(
        index=index,
        keys=tuple(entry.key for entry in entries),
        captions=tuple("" if isinstance(sample, Fault) else sample.caption for sample in samples),
        weight_B=torch.tensor([0.0 if fault else 1.0 for fault in faults]),
        fps_B=torch.tensor([1.0 if isinstance(sample, Fault) else sample.fps for sample in samples]),
        latents_BCTHW=tensors.get("latents"),
        video_BCTHW=tensors.get("video"),
        text_BLD=tensors.get("text"),
        text_mask_BL=None if mask is None else mask.bool(),
        labels=tuple({} if isinstance(sample, Fault) else sample.labels for sample in samples),
    )
