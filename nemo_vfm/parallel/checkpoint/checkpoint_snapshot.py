"""Copies the tensors that this rank is to write into CPU memory, as the bytes of its files.

Once a snapshot is taken the training continues, and its changes to the tensors do not reach the files. The memory is
kept from save to save, since allocating it again costs more than the copy itself.
"""

import hashlib
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from nemo_vfm.core import lease_registry
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.parallel.apply.local_shard import local_storage
from nemo_vfm.parallel.checkpoint import checkpoint_index, checkpoint_pieces, tensor_file
from nemo_vfm.parallel.checkpoint.checkpoint_index import TensorEntry
from nemo_vfm.parallel.checkpoint.checkpoint_pieces import TensorBox
from nemo_vfm.parallel.checkpoint.checkpoint_ranks import ALONE, run_on_ranks
from nemo_vfm.parallel.checkpoint.tensor_file import PackedTensorFile
from nemo_vfm.parallel.ranks.gather import Gather

_ROOM = 1.05  # of the bytes of the tensors, for headers and manifest
_KEY_BYTES = 16
Groups = Mapping[str, Mapping[str, Tensor]]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What this rank writes, at one step."""

    step: int
    files: Mapping[str, PackedTensorFile]  #: by name
    index: Mapping[str, Mapping[str, TensorEntry]]  #: which tensor parts they hold


class Buffers:
    """Memory on the CPU by name, asked for once and used again."""

    def __init__(self) -> None:
        self._kept: dict[str, Tensor] = {}

    def room(self, name: str, num_bytes: int, *, pinned: bool) -> Tensor:
        """So many bytes; what they held before is gone. A GPU copies to pinned ones at full speed."""
        kept = self._kept.get(name)
        if kept is None or kept.numel() < num_bytes:
            self._kept.pop(name, None)
            kept = self._kept[name] = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=pinned)
        return kept[:num_bytes]


@dataclass(slots=True)
class Owners:
    """Which parts a rank writes where several hold the same; asked anew only when what a rank holds has changed."""

    _digests: list[Json] = field(default_factory=list)
    _own: frozenset[bytes] = frozenset()

    def own_keys(self, keys: list[bytes], ranks: Gather) -> frozenset[bytes]:
        """Those that this rank writes; of several that hold one a hash picks, so that all write alike much."""
        digest = hashlib.sha256(b"".join(keys)).hexdigest()
        digests = run_on_ranks(ranks, lambda: digest)
        if digests != self._digests:
            holders: dict[bytes, list[int]] = {key: [] for key in keys}
            for rank, gathered in enumerate(ranks.all_gather(b"".join(keys))):
                for at in range(0, len(gathered), _KEY_BYTES):
                    if (key := bytes(gathered[at : at + _KEY_BYTES])) in holders:
                        holders[key].append(rank)
            me = ranks.rank()
            mine = (key for key, at in holders.items() if at[int.from_bytes(key, "little") % len(at)] == me)
            self._own, self._digests = frozenset(mine), digests
        return self._own


def snapshot(
    folder: Path, step: int, groups: Groups, run: str, ranks: Gather = ALONE,
    buffers: Buffers | None = None, owners: Owners | None = None,
) -> Snapshot:  # fmt: skip
    """A copy of what this rank writes of a checkpoint to `folder`; every rank must call it.

    UserError if the disk there clearly cannot take it, or a tensor cannot be saved.
    """
    lease_registry.stop_if_lost()
    boxes: dict[tuple[str, str], TensorBox] = {}
    run_on_ranks(ranks, lambda: boxes.update(_boxes(groups)))
    keys = {place: _key(*place, box, groups) for place, box in boxes.items()}
    own = (owners or Owners()).own_keys(list(keys.values()), ranks)
    mine = {place: box for place, box in boxes.items() if keys[place] in own}
    sizes = run_on_ranks(ranks, lambda: sum(box.volume * groups[g][n].element_size() for (g, n), box in mine.items()))
    run_on_ranks(ranks, lambda: require_room(folder, sum(sizes)) if ranks.rank() == 0 else None)
    taken: list[Snapshot] = []
    run_on_ranks(ranks, lambda: taken.append(_take(step, groups, mine, run, ranks, buffers or Buffers())))
    return taken[0]


def _boxes(groups: Groups) -> dict[tuple[str, str], TensorBox]:
    try:
        found = {
            (g, n): checkpoint_pieces.local_box(n, tensor)
            for g, tensors in groups.items()
            for n, tensor in tensors.items()
        }
    except ValueError as error:
        raise UserError(f"The training cannot be saved: {error}.") from error
    return {place: box for place, box in found.items() if box is not None}


def _key(group: str, name: str, box: TensorBox, groups: Groups) -> bytes:
    tensor = groups[group][name]
    text = f"{group}\0{name}\0{box.offsets}{box.shape}{tuple(tensor.shape)}{tensor.dtype}"
    return hashlib.blake2b(text.encode(), digest_size=_KEY_BYTES).digest()


def _take(
    step: int, groups: Groups, mine: Mapping[tuple[str, str], TensorBox], run: str, ranks: Gather, buffers: Buffers
) -> Snapshot:
    files, index = {}, {}
    for group, tensors in groups.items():
        file = checkpoint_index.file_name(group, ranks.rank(), ranks.num_ranks())
        own = {name: box for (of, name), box in mine.items() if of == group}
        parts = {name: local_storage(tensors[name]) for name in own}
        index[group] = {
            name: TensorEntry(tensor_file.dtype_name(parts[name].dtype), tuple(tensors[name].shape), ((file, box),))
            for name, box in own.items()
        }
        if parts or ranks.rank() == 0:  # of a group without tensors there is one empty file
            about = {"group": group, "step": str(step), "run": run}
            pinned = any(part.device.type != "cpu" for part in parts.values())
            files[file] = tensor_file.pack(parts, about, partial(buffers.room, group, pinned=pinned))
    return Snapshot(step, files, index)


def require_room(folder: Path, num_bytes: int) -> None:
    """UserError where the disk clearly cannot take so many bytes, or does not say, before anything is written."""
    try:
        there = next(parent for parent in (folder, *folder.absolute().parents) if parent.is_dir())
        free = shutil.disk_usage(there).free
    except OSError as error:
        raise UserError(f"The disk of {folder} cannot report its free space ({error.strerror or error}).") from error
    if free < num_bytes * _ROOM:
        raise UserError(
            f"A checkpoint needs {num_bytes * _ROOM / 1e9:.3g} GB, but the disk of {folder} has {free / 1e9:.3g} GB "
            f"free. Make room, or choose another run_dir; earlier checkpoints are untouched."
        )
