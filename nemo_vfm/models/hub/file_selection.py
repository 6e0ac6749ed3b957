# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Chooses which files of a model are brought: those that `--only` names, else all but weights that may hold code."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.sanitize import printable
from nemo_vfm.models.hub.hub_file import HubFile

#: Pickles, and weights of programs other than torch: no use beside safetensors, and some run code when they are read.
LEFT_OUT = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".joblib", ".h5", ".keras", ".msgpack", ".ot", ".nemo")
_SHOWN = 12


@dataclass(frozen=True, slots=True)
class FileSelection:
    """The files of a commit, in two parts.

    Args:
        chosen: are brought.
        left_out: are not, because of what they are; with `--only` nothing is said of the others.
    """

    chosen: tuple[HubFile, ...]
    left_out: tuple[HubFile, ...] = ()


def file_selection(files: Sequence[HubFile], only: Sequence[str]) -> FileSelection:
    """Choose.

    Args:
        files: of the commit.
        only: patterns in which `*` stands for anything, folders included; none chooses by the files' ends.

    Raises:
        UserError: a pattern fits nothing, or only files are there that are left out.
    """
    if only:
        idle = [pattern for pattern in only if not any(fnmatchcase(file.path, pattern) for file in files)]
        if idle:
            raise UserError(f"--only {printable(repr(idle[0]), 200)} fits no file of the model; it has {_shown(files)}")
        return FileSelection(tuple(file for file in files if any(fnmatchcase(file.path, one) for one in only)))
    left = tuple(file for file in files if file.path.lower().endswith(LEFT_OUT))
    chosen = tuple(file for file in files if not file.path.lower().endswith(LEFT_OUT))
    if left and not any(file.path.lower().endswith((".safetensors", ".gguf", ".onnx")) for file in chosen):
        raise UserError(f"the model has no weights as safetensors, only {_shown(left)}, which may run code when "
                        "another program reads them: bring them by --only 'PATTERN', and let `nemo-vfm convert` "
                        "read them")  # fmt: skip
    if not chosen:
        raise UserError("the model has no files at this revision")
    return FileSelection(chosen, left)


def about_left_out(files: Sequence[HubFile]) -> str:
    """What is not brought, why, and how to bring it."""
    ends = Counter(PurePosixPath(file.path).suffix.lower() for file in files)
    kinds = ", ".join(f"{number} {end}" for end, number in sorted(ends.items()))
    return (f"left out, because reading it may run code or needs another program: {kinds} ({_total(files)}); --only "
            "brings it, and `nemo-vfm convert` reads it without running any")  # fmt: skip


def files_text(files: Sequence[HubFile]) -> str:
    """Number and size of files, for a message."""
    return f"{len(files)} {'file' if len(files) == 1 else 'files'} ({_total(files)})"


def size_text(size: int) -> str:
    """A number of bytes with a unit that suits it."""
    for unit, divisor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= divisor:
            return f"{size / divisor:.1f} {unit}"
    return f"{size} bytes"


def _total(files: Sequence[HubFile]) -> str:
    return size_text(sum(file.size for file in files))


def _shown(files: Sequence[HubFile]) -> str:
    names = [printable(file.path, 100) for file in files]
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(names[:_SHOWN])}{more}"
