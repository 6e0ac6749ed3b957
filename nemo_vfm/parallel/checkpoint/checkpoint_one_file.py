"""Writes one group of a checkpoint, however it is sharded, as one safetensors file, and reads such a file as a group.

Tensors pass one by one, so that it takes the memory of the largest. `convert.json` beside the file holds its hash, as
it does for files that `nemo-vfm convert` makes from other frameworks; those are read here as well.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nemo_vfm.core.errors import CorruptCheckpoint
from nemo_vfm.core.storage.files import read_json, sha256_file
from nemo_vfm.parallel.checkpoint import checkpoint_index, tensor_file
from nemo_vfm.parallel.checkpoint import checkpoint_manifest as manifests
from nemo_vfm.parallel.checkpoint.checkpoint_ranks import together
from nemo_vfm.parallel.checkpoint.checkpoint_reader import SavedTensors, Unread
from nemo_vfm.parallel.ranks.gather import Gather

NAME, ABOUT = "model.safetensors", "convert.json"


@dataclass(frozen=True, slots=True)
class OneFile:
    """Weights that lie in one file."""

    tensors: SavedTensors
    group: str  #: which they are, such as ema; model where the file does not say
    step: int  #: of the training that left them; 0 where the file does not say
    run: str  #: names it; empty where the file does not say
    sha256: str


def write(path: Path, saved: Unread, about: dict[str, str]) -> tensor_file.FileDigest:
    """Write a group of a checkpoint as one file, flushed; its hash and size.

    Args:
        saved: the group, or other tensors that are read when asked for.
        about: texts in the file's header.

    Raises:
        OSError: the disk is full, or fails.
        CorruptCheckpoint: a file of the checkpoint is not what its index says.
    """
    return tensor_file.write_blocks(path, _blocks(saved, about), beside=True)


def _blocks(saved: Unread, about: dict[str, str]) -> Iterator[bytes | memoryview]:
    shapes = {name: (tensor_file.dtype_name(saved.dtype(name)), saved.shape(name)) for name in saved}
    # Whoever reads safetensors for torch elsewhere looks for this word first.
    head, places = tensor_file.header(shapes, {"format": "pt", **about})
    yield head
    for name in places:
        yield tensor_file.bytes_of(saved[name])


def there(path: Path) -> Path | None:
    """The file that a path means: itself, or the one in a folder that `nemo-vfm convert` made; None where neither."""
    if path.suffix == checkpoint_index.SUFFIX and path.is_file():
        return path
    made = (path / NAME).is_file() and (path / ABOUT).is_file() and not (path / manifests.NAME).exists()
    return path / NAME if made else None


def read(file: Path, ranks: Gather) -> OneFile:
    """Weights of one file, not read yet; every rank must call it, and the first hashes it.

    Raises:
        CorruptCheckpoint: it is not a whole and honest file, or not the one that `convert.json` speaks of.
    """
    sha256 = str(together(ranks, lambda: _hashed(file) if ranks.rank() == 0 else None)[0])
    about = tensor_file.read_header(file).about
    step, group = about.get("step", ""), about.get("group", "model")
    tensors = SavedTensors(file.parent, checkpoint_index.of_one_file(file))
    return OneFile(tensors, group, int(step) if step.isdecimal() else 0, about.get("run", ""), sha256)


def _hashed(file: Path) -> str:
    try:
        found = sha256_file(file)
        metadata = read_json(file.with_name(ABOUT)) if file.with_name(ABOUT).is_file() else {}
    except (OSError, ValueError) as error:
        raise CorruptCheckpoint(f"{file} or {ABOUT} beside it cannot be read ({error}).") from error
    expected = metadata.get("model_sha256", found) if isinstance(metadata, dict) and file.name == NAME else found
    if expected != found:
        raise CorruptCheckpoint(f"{file} is damaged; its bytes do not match the hash in {ABOUT}.")
    return found
