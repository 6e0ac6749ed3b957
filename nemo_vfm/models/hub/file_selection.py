"""Selects the files to download: those that match `--only`, else all except weights that may contain code."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.sanitize import printable
from nemo_vfm.models.hub.hub_file import HubFile

#: Pickles and weights of other frameworks: redundant next to safetensors, and loading some of them runs code.
LEFT_OUT = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".joblib", ".h5", ".keras", ".msgpack", ".ot", ".nemo")
_SHOWN = 12


@dataclass(frozen=True, slots=True)
class FileSelection:
    """The files of a commit, split into two groups.

    Args:
        chosen: files to download.
        left_out: files excluded by their type; empty with `--only`.
    """

    chosen: tuple[HubFile, ...]
    left_out: tuple[HubFile, ...] = ()


def file_selection(files: Sequence[HubFile], only: Sequence[str]) -> FileSelection:
    """Select files by pattern or by suffix.

    Args:
        files: all files of the commit.
        only: patterns in which `*` matches anything, including `/`; without any, files are selected by suffix.

    Raises:
        UserError: a pattern matches nothing, or every weight file would be left out.
    """
    if only:
        unmatched = [pattern for pattern in only if not any(fnmatchcase(file.path, pattern) for file in files)]
        if unmatched:
            raise UserError(
                f"--only {printable(repr(unmatched[0]), 200)} matches no file of the model, which has {_shown(files)}"
            )
        return FileSelection(tuple(file for file in files if any(fnmatchcase(file.path, one) for one in only)))
    left = tuple(file for file in files if file.path.lower().endswith(LEFT_OUT))
    chosen = tuple(file for file in files if not file.path.lower().endswith(LEFT_OUT))
    if left and not any(file.path.lower().endswith((".safetensors", ".gguf", ".onnx")) for file in chosen):
        raise UserError(f"the model has no safetensors weights, only {_shown(left)}. Loading these elsewhere may run "
                        "code. Download them with --only 'PATTERN' and read them with `nemo-vfm convert`, which "
                        "runs none")  # fmt: skip
    if not chosen:
        raise UserError("the model has no files at this revision")
    return FileSelection(chosen, left)


def left_out_text(files: Sequence[HubFile]) -> str:
    """Say which files are left out, why, and how to download them."""
    ends = Counter(PurePosixPath(file.path).suffix.lower() for file in files)
    kinds = ", ".join(f"{number} {end}" for end, number in sorted(ends.items()))
    return (f"left out because loading may run code or needs another framework: {kinds} ({_total(files)}); --only "
            "downloads it, and `nemo-vfm convert` reads it without running code")  # fmt: skip


def files_text(files: Sequence[HubFile]) -> str:
    """Format the number and total size of files."""
    return f"{len(files)} {'file' if len(files) == 1 else 'files'} ({_total(files)})"


def size_text(size: int) -> str:
    """Format a number of bytes with a suitable unit."""
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
