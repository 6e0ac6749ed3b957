# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Reads a file of another framework: its weights, its configuration, and what was left out."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from torch import Tensor

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.models.convert.nemo_archive import read_nemo
from nemo_vfm.models.convert.torch_zip import open_torch_zip
from nemo_vfm.models.convert.weights import plain, unread, weights
from nemo_vfm.models.convert.window import Window

Format = Literal["nemo", "torch"]


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
    if format_of(path) == "nemo":
        if key is not None or leave_out:
            raise UserError("a .nemo archive has its weights in one place and nothing to leave out")
        archive = read_nemo(path)
        return Foreign("nemo", archive.weights, archive.config, {}, archive.others)
    with path.open("rb") as file:
        opened = open_torch_zip(Window(file, 0, path.stat().st_size), leave_out=leave_out)
        places = weights(opened.content, key)
        tensors = opened.tensors(places)
        others = (*unread(opened.content, places), *opened.left_out)
    return Foreign("torch", tensors, None, plain(opened.content), others)


def format_of(path: Path) -> Format:
    """By the file's first bytes; its name says nothing.

    Raises:
        DataError: it is none that we read; the text says what to do.
    """
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
        raise DataError("this is a safetensors file already; there is nothing to convert")
    raise DataError("this is neither a .nemo archive nor a file of torch.save")
