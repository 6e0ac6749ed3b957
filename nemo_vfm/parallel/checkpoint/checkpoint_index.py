"""Reads and writes `pieces.json`: which file of a checkpoint holds which part of each tensor. Every value is checked.

It is separate from the manifest: for hundreds of ranks it is tens of megabytes, and manifests are read often.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from nemo_vfm.core.errors import CorruptCheckpoint
from nemo_vfm.core.storage.files import sha256_text
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.parallel.checkpoint import tensor_file
from nemo_vfm.parallel.checkpoint.checkpoint_pieces import Ints, TensorBox, full_box
from nemo_vfm.parallel.checkpoint.tensor_file import FileDigest

NAME = "pieces.json"
SUFFIX = ".safetensors"
MAX_BYTES = 1 << 30
_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.safetensors")


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor: what it is, and the files that hold its parts, each under the tensor's name."""

    dtype: str
    shape: Ints
    pieces: tuple[tuple[str, TensorBox], ...]


Index = Mapping[str, Mapping[str, TensorEntry]]


class PiecesFile(TypedDict):
    """What `pieces.json` holds."""

    files: list[str]  #: names, by their number
    #: group -> tensor -> (dtype, shape, parts), each part (number of its file, offsets, shape)
    groups: dict[str, dict[str, list[Json]]]


def file_name(group: str, rank: int, num_ranks: int) -> str:
    """The file that a rank writes for a group; one rank writes the whole group."""
    return f"{group}{SUFFIX}" if num_ranks == 1 else f"{group}-{rank:05d}-of-{num_ranks:05d}{SUFFIX}"


def group_of(file: str) -> str:
    """The group that a file is of, by its name."""
    match = _PART.fullmatch(file)
    return match[1] if match else file.removesuffix(SUFFIX)


def fingerprint(files: Mapping[str, FileDigest], group: str) -> str:
    """One hash for a group of a checkpoint whose manifest lists these files."""
    own = [files[name]["sha256"] for name in sorted(files) if name.endswith(SUFFIX) and group_of(name) == group]
    return own[0] if len(own) == 1 else sha256_text(" ".join(own))


def to_json(index: Index) -> PiecesFile:
    """As `pieces.json` holds it: file names stand once, in a list."""
    files = sorted({file for entries in index.values() for entry in entries.values() for file, _ in entry.pieces})
    number = {file: at for at, file in enumerate(files)}
    groups = {
        group: {
            name: [e.dtype, list(e.shape), [[number[f], list(box.offsets), list(box.shape)] for f, box in e.pieces]]
            for name, e in entries.items()
        }
        for group, entries in index.items()
    }
    return {"files": files, "groups": groups}


def merge(parts: Iterable[PiecesFile]) -> Index:
    """One index of those of all ranks. ValueError if they do not speak of the same tensors, or leave gaps."""
    groups: dict[str, dict[str, tuple[str, Ints, list[tuple[str, TensorBox]]]]] = {}
    for part in parts:
        files = part["files"]
        for group, given in part["groups"].items():
            tensors = groups.setdefault(group, {})
            for name, (dtype, sizes, pieces) in given.items():
                if dtype not in tensor_file.DTYPES:
                    raise ValueError(f"{name[:80]!r} has an unknown dtype")
                boxes = [(files[_count(number)], TensorBox(_counts(at), _counts(size))) for number, at, size in pieces]
                if any(group_of(file) != group for file, _ in boxes):
                    raise ValueError(f"{name[:80]!r} is in a file of another group")
                shape = _counts(sizes)
                known = tensors.setdefault(name, (dtype, shape, []))
                if known[:2] != (dtype, shape):
                    raise ValueError(f"{group} {name} is {known[0]} {known[1]} on one rank and {dtype} {shape} "
                                     f"on another")  # fmt: skip
                known[2].extend(boxes)
    index = {
        g: {n: TensorEntry(d, s, tuple(p)) for n, (d, s, p) in sorted(e.items())} for g, e in sorted(groups.items())
    }
    for group, entries in index.items():
        for name, entry in entries.items():
            _require_whole(f"{group} {name}", entry)
    return index


def read(folder: Path, files: Mapping[str, FileDigest]) -> Index:
    """The index of a checkpoint whose manifest lists these files; one file a group needs no `pieces.json`.

    Raises:
        CorruptCheckpoint: it says what cannot be.
    """
    if NAME not in files:
        return {group_of(file): of_one_file(folder / file) for file in files}
    try:
        if files[NAME]["bytes"] > MAX_BYTES:
            raise ValueError("it is too large")
        content = json.loads((folder / NAME).read_bytes())
        if unknown := set(content["files"]) - files.keys():
            raise ValueError(f"it names {min(unknown)[:80]!r}, which the manifest does not list")
        return merge([content])
    except (OSError, ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError) as error:
        raise CorruptCheckpoint(f"{folder}: {NAME} is damaged ({error}).") from error


def of_one_file(file: Path) -> dict[str, TensorEntry]:
    """What lies where when all of a group lies in one file."""
    header = tensor_file.read_header(file)
    return {n: TensorEntry(header.dtypes[n], s, ((file.name, full_box(s)),)) for n, s in header.shapes.items()}


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError(f"{str(value)[:40]} is not a number of values")
    return value


def _counts(values: Any) -> Ints:
    if not isinstance(values, list) or len(values) > 64:
        raise ValueError("a shape is invalid")
    return tuple(_count(value) for value in values)


def _require_whole(name: str, entry: TensorEntry) -> None:
    """The parts lie in the tensor, do not overlap, and together are all of it."""
    outer = full_box(entry.shape)
    boxes = sorted((box for _, box in entry.pieces), key=lambda box: box.offsets)
    for box in boxes:
        if len(box.offsets) != len(entry.shape) or len(box.shape) != len(entry.shape):
            raise ValueError(f"a part of {name} has a different number of dimensions")
        if any(a + n > size for a, n, size in zip(box.offsets, box.shape, entry.shape, strict=True)):
            raise ValueError(f"a part of {name} is outside it")
    if sum(box.volume for box in boxes) != outer.volume:
        raise ValueError(f"the parts of {name} hold {sum(b.volume for b in boxes)} of {outer.volume} values")
    for at, box in enumerate(boxes):
        for other in boxes[at + 1 :]:
            if entry.shape and other.offsets[0] >= box.offsets[0] + box.shape[0]:
                break  # they are sorted: all that follow begin later still
            if box.intersect(other) is not None:
                raise ValueError(f"two parts of {name} overlap")
