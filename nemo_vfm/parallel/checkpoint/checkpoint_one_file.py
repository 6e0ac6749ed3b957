"""Writes one group of a checkpoint, however it is sharded, as one safetensors file.

Tensors pass one by one, so that it takes the memory of the largest. `convert.json` beside the file holds its hash, as
it does for files that `nemo-vfm convert` makes from other frameworks. `open_checkpoint` reads both.
"""

from collections.abc import Iterator
from pathlib import Path

from nemo_vfm.parallel.checkpoint import tensor_file
from nemo_vfm.parallel.checkpoint.checkpoint_reader import UnreadTensors

NAME, ABOUT = "model.safetensors", "convert.json"


def write(path: Path, saved: UnreadTensors, about: dict[str, str]) -> tensor_file.FileDigest:
    """Write a group, or other tensors that are read when asked for, as one file, flushed; its hash and size.

    Args:
        about: texts in the file's header.

    Raises:
        OSError: the disk is full, or fails.
        CorruptCheckpoint: a file of the checkpoint is not what its index says.
    """
    return tensor_file.write_blocks(path, _blocks(saved, about), beside=True)


def _blocks(saved: UnreadTensors, about: dict[str, str]) -> Iterator[bytes | memoryview]:
    shapes = {name: (tensor_file.dtype_name(saved.dtype(name)), saved.shape(name)) for name in saved}
    # Whoever reads safetensors for torch elsewhere looks for this word first.
    head, places = tensor_file.header(shapes, {"format": "pt", **about})
    yield head
    for name in places:
        yield tensor_file.bytes_of(saved[name])
