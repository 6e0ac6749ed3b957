"""Reads a file of another framework: its weights, its configuration, and what was left out."""

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from torch import Tensor

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.models.convert.dcp_folder import DcpFolder, checkpoint_in, is_zarr
from nemo_vfm.models.convert.nemo_archive import read_nemo
from nemo_vfm.models.convert.tensor_source import TensorSource, ZipSource
from nemo_vfm.models.convert.torch_zip import open_torch_zip
from nemo_vfm.models.convert.weight_files import open_safetensors
from nemo_vfm.models.convert.weights import extra_states, plain, tensors_of, unread, weights
from nemo_vfm.models.convert.window import Window

Format = Literal["nemo", "torch", "safetensors", "distcp"]


@dataclass(frozen=True, slots=True)
class Foreign:
    """What a file holds.

    Args:
        format: which kind of file it is, by its bytes.
        weights: tensors by name.
        config: the text of a NeMo configuration; None elsewhere.
        values: texts and numbers beside the weights, by dotted name.
        others: members and keys whose tensors were not read, and names of code that was left out.
    """

    format: Format
    weights: dict[str, Tensor]
    config: str | None
    values: Mapping[str, Json]
    others: tuple[str, ...]


def read_foreign(path: Path, *, key: str | None = None, leave_out: bool = False) -> Foreign:
    """Read a `.nemo` archive, or a `.ckpt`, `.pt`, `.pth` or `.bin` file of torch.save.

    Args:
        key: where the weights are, where that is not clear.
        leave_out: go on where the file names code beside its weights; nothing of it is run.

    Raises:
        UserError: the weights could be in several places.
        DataError: the file is of another kind, is damaged, or holds code.
    """
    found = format_of(path)
    if found == "safetensors":
        raise DataError("this is already safetensors, but its names are not those of a Wan or Cosmos, whose own files "
                        "are converted; for an adapter, add --adapter ours --base DIR")  # fmt: skip
    if found == "nemo":
        if key is not None or leave_out:
            raise UserError("a .nemo archive has its weights in one place and nothing to leave out")
        archive = read_nemo(path)
        return Foreign("nemo", archive.weights, archive.config, {}, archive.others)
    with path.open("rb") as file:
        opened = open_torch_zip(Window(file, 0, path.stat().st_size), leave_out=leave_out)
        places = weights(opened.content, key)
        tensors = opened.tensors(places)
        others = (*unread(opened.content, places), *extra_states(opened.content), *opened.left_out)
    return Foreign("torch", tensors, None, plain(opened.content), others)


@dataclass(frozen=True, slots=True)
class ForeignTensors:
    """All tensors of a foreign file, not read yet.

    Args:
        format: which kind of file it is.
        source: of the tensors, by dotted name.
        others: names of streams of bytes, of code that was left out, and of files that are not read.
    """

    format: Format
    source: TensorSource
    others: tuple[str, ...]


@contextmanager
def opened_tensors(path: Path, *, leave_out: bool = False) -> Iterator[ForeignTensors | None]:
    """The tensors of a file of torch.save or safetensors, or of a folder of `.distcp` files; None of a `.nemo` archive.

    Args:
        leave_out: see `read_foreign`.

    Raises:
        DataError: it is of another kind, is damaged, or holds code.
    """
    found = format_of(path)
    if found == "distcp":
        with DcpFolder(checkpoint_in(path) or path) as folder:
            yield ForeignTensors(found, folder, folder.others)
    elif found == "safetensors":
        with closing(open_safetensors(path)) as mapped:
            yield ForeignTensors(found, mapped, ())
    elif found == "torch":
        with path.open("rb") as file:
            opened = open_torch_zip(Window(file, 0, path.stat().st_size), leave_out=leave_out)
            places, others = tensors_of(opened.content)
            yield ForeignTensors(found, ZipSource(opened, places), (*others, *opened.left_out))
    else:
        yield None


def format_of(path: Path) -> Format:
    """By the file's first bytes, since its name says nothing; of a folder, by the index in it.

    Raises:
        DataError: it is none that we read; the text says what to do.
    """
    if path.is_dir():
        if checkpoint_in(path) is None and is_zarr(path):
            raise DataError("this is a checkpoint of Megatron-Core in its former format, zarr, which is not read; save "
                            "it again as torch_dist with the program that wrote it")  # fmt: skip
        return "distcp"
    with path.open("rb") as file:
        start = file.read(512)
    if start[:4] == b"PK\x03\x04":
        return "torch"
    if start[:2] == b"\x1f\x8b" or start[257:262] == b"ustar":
        return "nemo"
    if start[:1] == b"\x80":
        raise DataError("this is a bare pickle, or a file written by torch before 1.6; load it where you trust it, "
                        "and save it again with torch.save")  # fmt: skip
    if start[8:9] == b"{":
        return "safetensors"
    raise DataError("this is neither a .nemo archive nor a file of torch.save")
