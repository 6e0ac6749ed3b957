"""Collates samples of one shape into a VideoBatch; a bad one becomes zeros with loss weight 0 and a fault.

Shape letters: B batch, C channels, T frames, H height, W width, L text tokens, D width of a text token.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from nemo_vfm.core.types.sample_batches import VideoBatch
from nemo_vfm.data.batching.faults import Fault
from nemo_vfm.data.shards.read_in_place import Rows
from nemo_vfm.data.shards.safetensors_views import TensorView
from nemo_vfm.data.shards.sample_members import OWN_TENSORS
from nemo_vfm.data.shards.sample_reader import Layout, LoadedSample
from nemo_vfm.data.shards.shard_files import Entry


def collate(
    index: int, entries: Sequence[Entry], load: Callable[[Sequence[Entry], Rows], list[LoadedSample | Fault]],
    layout: Layout,
) -> tuple[VideoBatch, list[Fault | None]]:  # fmt: skip
    """The batch and, a sample each, what was wrong with it.

    `load` reads the samples, perhaps to their rows of the batch, or says why not; `layout` is what each must look like.
    """
    tensors = {name: _empty((len(entries), *shape), dtype) for name, (dtype, shape) in layout.items()}
    rows = {name: tensor.view(torch.uint8).reshape(len(entries), -1).numpy() for name, tensor in tensors.items()}
    samples = load(entries, rows)
    faults = [
        sample if isinstance(sample, Fault) else _place(entry, sample, layout, rows, place)
        for place, (entry, sample) in enumerate(zip(entries, samples, strict=True))
    ]
    for name, (dtype, shape) in layout.items():
        # All at once: each of these calls lets go of the interpreter, and threads wait for each other (read_in_place).
        if TensorView(dtype, shape, rows[name].reshape(-1)).is_finite():
            continue
        for place, entry in enumerate(entries):
            if faults[place] is None and not TensorView(dtype, shape, rows[name][place]).is_finite():
                # One NaN in a latent would reach every weight of the model in one step.
                faults[place] = Fault(entry.key, entry.shard, f"its {name} holds NaN or infinity")
    for place, fault in enumerate(faults):
        for name, tensor in tensors.items() if fault is not None else ():
            tensor[place] = 0
            if name == "mask":
                tensor[place, :1] = 1  # attention over no token at all is NaN, and NaN times weight 0 is NaN
    mask, good = tensors.get("mask"), [None if isinstance(sample, Fault) else sample for sample in samples]
    # numpy makes tensors of lists 10 times as fast as torch.tensor.
    weights = np.array([0.0 if fault else 1.0 for fault in faults], np.float32)
    rates = np.array([1.0 if sample is None else sample.fps for sample in good], np.float32)
    batch = VideoBatch(
        index=index,
        keys=tuple(entry.key for entry in entries),
        captions=tuple("" if sample is None else sample.caption for sample in good),
        weight_B=torch.from_numpy(weights),
        fps_B=torch.from_numpy(rates),
        latents_BCTHW=tensors.get("latents"),
        video_BCTHW=tensors.get("video"),
        text_BLD=tensors.get("text"),
        text_mask_BL=None if mask is None else mask.bool(),
        labels=tuple({} if sample is None else sample.labels for sample in good),
        members={name: tensor for name, tensor in tensors.items() if name not in OWN_TENSORS},
    )
    return batch, faults


def _empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Uninitialised; in a worker straight in shared memory, which spares the copy on the way to the trainer."""
    if torch.utils.data.get_worker_info() is None:
        return torch.empty(shape, dtype=dtype)
    flat = torch.empty(0, dtype=torch.uint8)
    count = dtype.itemsize * math.prod(shape)
    flat.set_(torch.UntypedStorage._new_shared(count, device="cpu"))  # type: ignore[no-untyped-call]
    return flat.view(dtype).view(shape)


def _place(entry: Entry, sample: LoadedSample, layout: Layout, rows: Rows, place: int) -> Fault | None:
    """Copy a sample to its rows, unless it lies among them; or say what does not fit."""
    for name, (dtype, shape) in layout.items():
        stored: TensorView | None = sample.tensors.get(name)
        if stored is None or (stored.dtype, stored.shape) != (dtype, shape):
            found = "nothing" if stored is None else f"{stored.dtype} {stored.shape}"
            return Fault(entry.key, entry.shard, f"its {name} is {found}, expected {dtype} {shape}")
        if not np.may_share_memory(stored.data, rows[name]):
            rows[name][place] = stored.data
    return None
