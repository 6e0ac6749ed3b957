"""Reads a file of another framework: its weights, its configuration, and what was left out.

A NeMo archive (`.nemo`) is a tar, plain or gzipped, of `model_config.yaml`, `model_weights.ckpt` (a file of torch.save)
and other files that the model needs, such as tokenizers. Nothing of it is unpacked, built or run: the configuration may
name classes in `_target_`; here it stays text.
"""

import gzip
import tarfile
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from math import isfinite
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Literal

from torch import Tensor

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.models.convert.dcp_folder import DcpFolder, checkpoint_in, is_zarr
from nemo_vfm.models.convert.opcodes import LeftOut, TensorPlace
from nemo_vfm.models.convert.tensor_source import UnreadTensor, kind_of, mapped_tensors
from nemo_vfm.models.convert.torch_zip import Window, open_torch_zip
from nemo_vfm.models.convert.weight_files import open_safetensors
from nemo_vfm.models.convert.weights import by_name, is_stream, walk, weights

Format = Literal["nemo", "torch", "safetensors", "distcp"]
CONFIG, WEIGHTS = "model_config.yaml", "model_weights.ckpt"
MAX_CONFIG_BYTES = 1 << 20
_MAX_MEMBERS = 10_000
#: A gzipped archive may grow to the larger of the two: weights hardly shrink, and a bomb grows a thousandfold.
_MAX_GROWTH, _ALWAYS_BYTES = 20, 64 << 20
_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class Foreign:
    """What a file holds."""

    format: Format  #: which kind of file it is, by its bytes
    weights: dict[str, Tensor]  #: tensors by name
    config: str | None  #: the text of a NeMo configuration; None elsewhere
    values: Mapping[str, Json]  #: texts and numbers beside the weights, by dotted name
    others: tuple[str, ...]  #: members and keys whose tensors were not read, and names of code that was left out


def read_foreign(path: Path, *, key: str | None = None, leave_out: bool = False) -> Foreign:
    """Read a `.nemo` archive, or a `.ckpt`, `.pt`, `.pth` or `.bin` file of torch.save.

    `key` is where the weights are, where that is not clear. With `leave_out`, code beside the weights is no error.
    """
    form = format_of(path)
    if form == "safetensors":
        raise DataError("this is already safetensors, but its names are not those of a Wan or Cosmos, whose own files "
                        "are converted; for an adapter, add --adapter ours --base DIR")  # fmt: skip
    if form == "nemo":
        if key is not None or leave_out:
            raise UserError("a .nemo archive has its weights in one place and nothing to leave out")
        return read_nemo(path)
    with path.open("rb") as file:
        opened = open_torch_zip(Window(file, 0, path.stat().st_size), leave_out=leave_out)
        places = weights(opened.content, key)
        tensors = opened.tensors(places)
    found, taken = list(walk(opened.content)), {id(place) for place in places.values()}
    # Keys below which there are other tensors, such as the optimizer's.
    unread = dict.fromkeys(name.partition(".")[0] for name, value in found
                           if isinstance(value, TensorPlace) and id(value) not in taken)  # fmt: skip
    streams = [name for name, value in found if is_stream(name, value)]
    values = {name: value for name, value in found
              if type(value) in (str, int, bool) or (type(value) is float and isfinite(value))}  # fmt: skip
    return Foreign("torch", tensors, None, values, (*unread, *streams, *opened.left_out))


@dataclass(frozen=True, slots=True)
class ForeignTensors:
    """All tensors of a foreign file, not read yet."""

    format: Format  #: which kind of file it is
    tensors: Mapping[str, UnreadTensor]  #: by dotted name
    others: tuple[str, ...]  #: names of streams of bytes, of code that was left out, and of files that are not read


@contextmanager
def opened_tensors(path: Path, *, leave_out: bool = False) -> Iterator[ForeignTensors | None]:
    """The tensors of a file of torch.save or safetensors, or a folder of `.distcp` files; None of a `.nemo` archive."""
    found = format_of(path)
    if found == "distcp":
        with DcpFolder(checkpoint_in(path) or path) as folder:
            yield ForeignTensors(found, folder.tensors, folder.others)
    elif found == "safetensors":
        with closing(open_safetensors(path)) as mapped:
            yield ForeignTensors(found, mapped_tensors(mapped), ())
    elif found == "torch":
        with path.open("rb") as file:
            opened = open_torch_zip(Window(file, 0, path.stat().st_size), leave_out=leave_out)
            content = dict(by_name(opened.content))
            tensors = {name: UnreadTensor(kind_of(place.dtype), place.shape, partial(opened.read_tensor, place))
                       for name, place in content.items() if isinstance(place, TensorPlace)}  # fmt: skip
            others = [name for name, one in content.items() if isinstance(one, LeftOut) or is_stream(name, one)]
            yield ForeignTensors(found, tensors, (*others, *opened.left_out))
    else:
        yield None


def format_of(path: Path) -> Format:
    """By the file's first bytes, since its name says nothing; of a folder, by the index in it."""
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


def read_nemo(path: Path) -> Foreign:
    """Read a `.nemo` archive."""
    with path.open("rb") as file, _plain_tar(file, path.stat().st_size) as tar:
        members = _members(tar)
        if CONFIG not in members or WEIGHTS not in members:
            reason = (f"a .nemo archive holds {CONFIG} and {WEIGHTS}; this one holds "
                      f"{', '.join(sorted(members)[:5]) or 'nothing'}")  # fmt: skip
            if any(name.endswith((".distcp", ".metadata")) for name in members):
                reason = ("its weights are a distributed checkpoint, whose index is a pickle; save it as one file "
                          "with NeMo first")  # fmt: skip
            elif any(PurePosixPath(name).name == WEIGHTS for name in members):
                reason = "its weights are split over several GPUs (mp_rank_..); merge them with NeMo first"
            raise DataError(reason)
        start, size = members[CONFIG]
        if size > MAX_CONFIG_BYTES:
            raise DataError(f"{CONFIG} has {size:,} bytes; a configuration has at most {MAX_CONFIG_BYTES:,}")
        try:
            config = tar.fill(start, size).decode()
        except UnicodeDecodeError as error:
            raise DataError(f"{CONFIG} is not text: {error}") from error
        start, size = members[WEIGHTS]
        archive = open_torch_zip(Window(tar.file, tar.start + start, size))
        tensors = archive.tensors(weights(archive.content))
    return Foreign("nemo", tensors, config, {}, tuple(sorted(members.keys() - {CONFIG, WEIGHTS})))


@contextmanager
def _plain_tar(file: BinaryIO, size: int) -> Iterator[Window]:
    """The tar itself; a gzipped one is unzipped into a file without a name, and only so far."""
    if file.read(2) != b"\x1f\x8b":
        yield Window(file, 0, size)
        return
    file.seek(0)
    with tempfile.TemporaryFile() as unzipped:
        limit = max(_ALWAYS_BYTES, size * _MAX_GROWTH)
        written = 0
        try:
            with gzip.GzipFile(fileobj=file) as source:
                while block := source.read(_BLOCK):
                    written += len(block)
                    if written > limit:
                        raise DataError(f"it unzips to more than {limit:,} bytes, which weights do not")
                    unzipped.write(block)
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(f"its gzip is damaged: {error}") from error
        yield Window(unzipped, 0, written)


def _members(window: Window) -> dict[str, tuple[int, int]]:
    """Name without a leading `./` -> (start, size) of every regular file."""
    found: dict[str, tuple[int, int]] = {}
    try:
        # The name of the mode matters: "r:" never guesses a compression.
        with tarfile.open(fileobj=window, mode="r:") as tar:
            last = -1
            for number in range(_MAX_MEMBERS + 1):
                if (info := tar.next()) is None:
                    break
                # A negative size would walk backwards for ever.
                if info.offset <= last or info.size < 0 or number == _MAX_MEMBERS:
                    raise DataError(f"the archive has more than {_MAX_MEMBERS:,} members, or goes backwards")
                last, shown = info.offset, f"{info.name[:200]!r}"
                if info.name.startswith("/") or ".." in info.name.split("/") or {*"\\\0"} & set(info.name):
                    raise DataError(f"the archive holds the name {shown}, which leads out of its folder")
                if info.isdir():
                    continue
                if not info.isreg() or info.issparse():
                    raise DataError(f"{shown} in the archive is a link, a device or sparse; NeMo writes plain files")
                if info.offset_data + info.size > window.size:
                    raise DataError(f"{shown} continues beyond the archive's end")
                name = info.name.removeprefix("./")
                if name in found:
                    raise DataError(f"the archive holds {name!r} twice")
                found[name] = (info.offset_data, info.size)
    except (tarfile.TarError, ValueError, OSError, RecursionError, OverflowError) as error:
        raise DataError(f"this is not a complete tar: {error}") from error
    return found
