"""Reads the configuration text and the weights of a NeMo archive (`.nemo`); nothing is unpacked, built or run.

An archive is a tar, plain or gzipped, of `model_config.yaml`, `model_weights.ckpt` (a file of torch.save) and other
files that the model needs, such as tokenizers. The configuration may name classes in `_target_`; here it stays text.
"""

import gzip
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, BinaryIO

from torch import Tensor

from nemo_vfm.core.errors import DataError
from nemo_vfm.models.convert.torch_zip import open_torch_zip
from nemo_vfm.models.convert.weights import weights
from nemo_vfm.models.convert.window import Window

CONFIG, WEIGHTS = "model_config.yaml", "model_weights.ckpt"
MAX_CONFIG_BYTES = 1 << 20
_MAX_MEMBERS = 10_000
#: A gzipped archive may grow to the larger of the two: weights hardly shrink, and a bomb grows a thousandfold.
_MAX_GROWTH, _ALWAYS_BYTES = 20, 64 << 20
_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class NemoArchive:
    """What was read.

    Args:
        config: the text of model_config.yaml.
        weights: tensors by name.
        others: names of the members that were not read.
    """

    config: str
    weights: dict[str, Tensor]
    others: tuple[str, ...]


def read_nemo(path: Path) -> NemoArchive:
    """Read an archive.

    Raises:
        DataError: it is not one, is damaged, or holds links, names that lead out of a folder, or code.
    """
    with path.open("rb") as file, _plain_tar(file, path.stat().st_size) as tar:
        members = _members(tar)
        if CONFIG not in members or WEIGHTS not in members:
            raise DataError(_what_is_missing(members))
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
    return NemoArchive(config, tensors, tuple(sorted(name for name in members if name not in (CONFIG, WEIGHTS))))


def _what_is_missing(members: dict[str, tuple[int, int]]) -> str:
    if any(name.endswith((".distcp", ".metadata")) for name in members):
        return "its weights are a distributed checkpoint, whose index is a pickle; save it as one file with NeMo first"
    if any(PurePosixPath(name).name == WEIGHTS for name in members):
        return "its weights are split over several GPUs (mp_rank_..); merge them with NeMo first"
    return f"a .nemo archive holds {CONFIG} and {WEIGHTS}; this one holds {', '.join(sorted(members)[:5]) or 'nothing'}"


@contextmanager
def _plain_tar(file: BinaryIO, size: int) -> Iterator[Window]:
    """The tar itself; a gzipped one is unzipped into a file without a name, and only so far."""
    if file.read(2) != b"\x1f\x8b":
        yield Window(file, 0, size)
        return
    file.seek(0)
    with tempfile.TemporaryFile() as unzipped:
        yield Window(unzipped, 0, _unzip(file, unzipped, max(_ALWAYS_BYTES, size * _MAX_GROWTH)))


def _unzip(packed: BinaryIO, target: IO[bytes], limit: int) -> int:
    written = 0
    try:
        with gzip.GzipFile(fileobj=packed) as source:
            while block := source.read(_BLOCK):
                written += len(block)
                if written > limit:
                    raise DataError(f"it unzips to more than {limit:,} bytes, which weights do not")
                target.write(block)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"its gzip is damaged: {error}") from error
    return written


def _members(window: Window) -> dict[str, tuple[int, int]]:
    """Name -> (start, size) of every regular file.

    Raises:
        DataError: a member is a link or a device, has a name that leads elsewhere, or comes twice.
    """
    found: dict[str, tuple[int, int]] = {}
    try:
        # The name of the mode matters: "r:" never guesses a compression.
        with tarfile.open(fileobj=window, mode="r:") as tar:
            for info in _headers(tar):
                name = _judged(info, window.size)
                if name in found:
                    raise DataError(f"the archive holds {name!r} twice")
                if name is not None:
                    found[name] = (info.offset_data, info.size)
    except (tarfile.TarError, ValueError, OSError, RecursionError, OverflowError) as error:
        raise DataError(f"this is not a complete tar: {error}") from error
    return found


def _headers(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    last = -1
    for number in range(_MAX_MEMBERS + 1):
        info = tar.next()
        if info is None:
            return
        if info.offset <= last or info.size < 0 or number == _MAX_MEMBERS:  # a negative size walks backwards for ever
            raise DataError(f"the archive has more than {_MAX_MEMBERS:,} members, or goes backwards")
        last = info.offset
        yield info


def _judged(info: tarfile.TarInfo, end: int) -> str | None:
    """The member's name without a leading `./`; None for a folder."""
    name = info.name.removeprefix("./")
    if info.name.startswith("/") or ".." in info.name.split("/") or "\\" in info.name or "\0" in info.name:
        raise DataError(f"the archive holds the name {info.name[:200]!r}, which leads out of its folder")
    if info.isdir():
        return None
    if not info.isreg() or info.issparse():
        raise DataError(f"{info.name[:200]!r} in the archive is a link, a device or sparse; NeMo writes plain files")
    if info.offset_data + info.size > end:
        raise DataError(f"{info.name[:200]!r} continues beyond the archive's end")
    return name
