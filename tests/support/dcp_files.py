"""Writes distributed checkpoints of torch in several files and chunks, as many ranks would, and dishonest ones."""

import io
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint import filesystem, metadata


@dataclass
class Entry:
    """A chunk that the index lists, and may tell lies about."""

    name: str
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: str
    start: int
    length: int


@dataclass
class Checkpoint:
    """The content of a checkpoint, to be changed before it is written.

    Args:
        files: bytes by name.
        chunks: of all tensors.
        tensors: dtype and shape by name.
        streams: of bytes, by name.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    chunks: list[Entry] = field(default_factory=list)
    tensors: dict[str, tuple[torch.dtype, tuple[int, ...]]] = field(default_factory=dict)
    streams: dict[str, bytes] = field(default_factory=dict)

    def index(self) -> Any:
        """What torch would pickle."""
        listed: dict[str, Any] = {name: metadata.BytesStorageMetadata() for name in self.streams}
        for name, (dtype, shape) in self.tensors.items():
            boxes = [
                metadata.ChunkStorageMetadata(torch.Size(c.offsets), torch.Size(c.sizes))
                for c in self.chunks if c.name == name
            ]  # fmt: skip
            properties = metadata.TensorProperties(dtype=dtype)
            listed[name] = metadata.TensorStorageMetadata(properties, torch.Size(shape), boxes)
        places = {
            metadata.MetadataIndex(c.name, torch.Size(c.offsets), number): filesystem._StorageInfo(
                c.file, c.start, c.length
            )
            for number, c in enumerate(self.chunks)
        } | {metadata.MetadataIndex(name): filesystem._StorageInfo("__0_0.distcp", 0, 1) for name in self.streams}
        return metadata.Metadata(listed, {}, places, metadata.StorageMeta(Path("/somewhere")), "1.0.0")

    def write(self, folder: Path, index: bytes | None = None) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in self.files.items():
            (folder / name).write_bytes(data)
        (folder / ".metadata").write_bytes(pickle.dumps(self.index()) if index is None else index)
        return folder


def made(
    tensors: Mapping[str, Tensor], cuts: Sequence[int] = (1,), streams: Mapping[str, bytes] | None = None
) -> Checkpoint:
    """A checkpoint of tensors, each cut along its axes into so many parts, a file a part."""
    found = Checkpoint(streams=dict(streams or {}))
    for name, tensor in tensors.items():
        found.tensors[name] = (tensor.dtype, tuple(tensor.shape))
        boxes = [((), tensor)] if not tensor.ndim else [((0,) * tensor.ndim, tensor)]
        for axis, count in zip(range(tensor.ndim if tensor.numel() else 0), cuts, strict=False):
            boxes = [cut for offsets, box in boxes for cut in _cut(offsets, box, axis, count)]
        for number, (offsets, box) in enumerate(boxes):
            file, data = f"__{number}_0.distcp", saved(box)
            start = len(found.files.get(file, b""))
            found.files[file] = found.files.get(file, b"") + data
            found.chunks.append(Entry(name, offsets, tuple(box.shape), file, start, len(data)))
    return found


def _cut(offsets: tuple[int, ...], box: Tensor, axis: int, count: int) -> list[tuple[tuple[int, ...], Tensor]]:
    found, at = [], offsets[axis]
    for part in box.chunk(count, axis):
        found.append(((*offsets[:axis], at, *offsets[axis + 1 :]), part))
        at += part.shape[axis]
    return found


def saved(tensor: Tensor) -> bytes:
    """As torch's writer saves a chunk: in a storage of its own."""
    file = io.BytesIO()
    torch.save(tensor.clone(memory_format=torch.contiguous_format), file)
    return file.getvalue()
