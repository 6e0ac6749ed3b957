"""Lists a user's files in a folder and those below it, by one rule for all who read what they did not write."""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PurePath

from nemo_vfm.core.log import warn
from nemo_vfm.core.storage.files import is_file

LINK_OUTSIDE, NO_REGULAR_FILE = "link_outside", "no_regular_file"
_UNFINISHED = ("~", ".part", ".partial", ".crdownload", ".tmp")
#: What lies beside films and pictures to describe them.
TEXTS = frozenset({".txt", ".caption", ".json", ".jsonl", ".csv", ".tsv", ".parquet", ".srt", ".vtt", ".md"})


def text_name(path: Path, root: Path) -> str:
    """Its path below the root, for tables; bytes of a name that are no UTF-8 as `\\xff`, else nothing can hold it."""
    return os.fsencode(path.relative_to(root).as_posix()).decode("utf-8", "backslashreplace")


def is_taken(name: PurePath, suffixes: frozenset[str]) -> bool:
    """Whether a path below a folder is no unfinished download, has no hidden part and has one of these endings."""
    return _is_whole(name) and name.suffix.lower() in suffixes


def _is_whole(name: PurePath) -> bool:
    return not any(part.startswith(".") for part in name.parts) and not name.name.endswith(_UNFINISHED)


def say_passed_over(root: object, names: Iterable[PurePath], known: frozenset[str]) -> None:
    """Tell once how many files below a folder have an ending that nobody asked about, such as .gif among videos."""
    others = Counter(name.suffix.lower() or "no suffix" for name in names if _is_whole(name))
    for suffix in known | TEXTS:
        del others[suffix]
    if others:
        kinds = ", ".join(f"{count:,} {suffix}" for suffix, count in others.most_common(8))
        said = f"{others.total():,} files in {root} are passed over: {kinds}; convert those that are videos or images"
        if ".tar" in others:
            said += "; clips in .tar: nemo-vfm run curation/encode shards=DIR, then diffusion/train_small"
        warn(said)


def walk(root: Path, wanted: Callable[[PurePath], bool]) -> Iterator[tuple[Path, str | None]]:
    """Each file whose path below the root is wanted, by name, and why it must not be read; that is said.

    A pipe would be waited for, a link that leads round in a circle cannot be resolved, and one that leads out of the
    folder may hand over what nobody meant to give.
    """
    inside = root.resolve()
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for path in (Path(folder, name) for name in sorted(names)):
            if not wanted(path.relative_to(root)):
                continue
            if not is_file(path):
                warn(f"{path} is not a regular file; it is skipped")
                yield path, NO_REGULAR_FILE
            elif not path.resolve().is_relative_to(inside):
                warn(f"{path} is a link that points outside {root}; it is not followed")
                yield path, LINK_OUTSIDE
            else:
                yield path, None


def files_below(root: Path, wanted: Callable[[PurePath], bool]) -> list[Path]:
    """Those that may be read, sorted by their path below the root."""
    return sorted(
        (path for path, why in walk(root, wanted) if why is None), key=lambda path: path.relative_to(root).as_posix()
    )
