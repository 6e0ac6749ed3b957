"""Parses `hf://ORG/MODEL@REVISION`, and validates the file names of a model before any of them becomes a local path."""

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from nemo_vfm.core.errors import DataError
from nemo_vfm.core.sanitize import UNSEEN, printable

#: The hub's rule for names, and the prefixes of repositories that are not models.
_NAME = re.compile(r"(?!.*(?:--|\.\.))[A-Za-z0-9_](?:[\w.-]{0,94}[A-Za-z0-9_])?", re.ASCII)
_NO_MODELS = ("datasets", "spaces", "kernels", "buckets", "models")
_REVISION = re.compile(r"(?!.*(?:\.\.|//|@\{))[^\s\x00-\x1f\x7f\\~^:?*\[/-][^\s\x00-\x1f\x7f\\~^:?*\[]{0,199}")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_EXPECTED = "expected hf://ORG/MODEL or hf://ORG/MODEL@REVISION"


@dataclass(frozen=True, slots=True)
class HubAddress:
    """A model on a hub."""

    model: str  #: `ORG/MODEL`
    revision: str = "main"  #: a branch, a tag or a commit

    @property
    def name(self) -> str:
        """The model's name without the organisation."""
        return self.model.partition("/")[2]

    def __str__(self) -> str:
        return f"hf://{self.model}@{self.revision}"


def hub_address(text: str) -> HubAddress:
    """Parse an address; ValueError where the text is not that of a model."""
    rest = text.removeprefix("hf://")
    name, at, revision = rest.partition("@")
    parts = name.rstrip("/").split("/")
    if rest == text:
        bare = re.sub(r"^(?:https?://)?[\w.-]*huggingface\.co/", "", text.removeprefix("hf:").strip("/"))
        found = "/".join(bare.split("/")[:2])
        hint = f"did you mean hf://{found}?" if re.fullmatch(r"[\w.-]+/[\w.@-]+", found) else _EXPECTED
        raise ValueError(f"{text[:200]!r} is not the address of a model: {hint}")
    if parts[0] in _NO_MODELS:
        raise ValueError(f"{text[:200]!r} is not a model; only models can be downloaded: {_EXPECTED}")
    if len(parts) > 2:
        raise ValueError(f"{text[:200]!r} names a file or folder inside a model; {_EXPECTED}; to download "
                         f"only that part, add --only '{'/'.join(parts[2:])[:100]}*'")  # fmt: skip
    if len(parts) < 2 or not all(map(_NAME.fullmatch, parts)):
        raise ValueError(f"{text[:200]!r} does not name an organisation and a model; {_EXPECTED}")
    if at and not _REVISION.fullmatch(revision):
        raise ValueError(f"{revision[:200]!r} is not a branch, a tag or a commit; {_EXPECTED}")
    if is_commit(revision.lower()):
        revision = revision.lower()
    return HubAddress("/".join(parts), revision if at else "main")


def is_commit(text: object) -> bool:
    """Return whether the text is a full commit hash: 40 lower-case hexadecimal digits."""
    return isinstance(text, str) and _COMMIT.fullmatch(text) is not None


def get_hint(folder: Path | str) -> str:
    """Return the command that downloads a model, for messages about a missing folder.

    A name such as ORG/MODEL is repeated in the command, that of a local folder is not.
    """
    text = re.sub(r"^hf:/+", "hf://", str(folder))
    bare = text.removeprefix("hf://")
    parts = bare.partition("@")[0].split("/")
    is_model = len(parts) == 2 and all(map(_NAME.fullmatch, parts)) and parts[0] not in _NO_MODELS
    if is_model and (bare != text or not Path(parts[0]).exists()):
        return f"nemo-vfm get hf://{bare}"
    return "nemo-vfm get hf://ORG/MODEL"


#: Names of the download record and of the folder for partial files; a model's own files may not use them.
RECORD, UNFINISHED = "get.json", ".get"
_LONGEST_NAME, _LONGEST_PATH, _MAX_LEVELS = 200, 1000, 16  # bytes, bytes, folders


def require_names(paths: Iterable[str]) -> None:
    """Refuse names that leave the folder, hide characters, or collide."""
    known: dict[str, tuple[str, str]] = {}
    for path in paths:
        if reason := _refusal(path):
            raise DataError(f"the hub lists a file that is refused: {printable(repr(path), 120)} {reason}")
        parts = path.split("/")
        for depth in range(1, len(parts) + 1):
            text, kind = "/".join(parts[:depth]), "file" if depth == len(parts) else "folder"
            # On case-insensitive disks these are one file, where the second would replace the first.
            folded = unicodedata.normalize("NFC", unicodedata.normalize("NFC", text).casefold())
            earlier = known.get(folded)
            if earlier is not None and (earlier != (text, kind) or kind == "file"):
                raise DataError(f"the hub lists the {earlier[1]} {printable(earlier[0], 120)!r} and the {kind} "
                                f"{printable(text, 120)!r}, which are the same name on some disks")  # fmt: skip
            known[folded] = (text, kind)


def path_in(folder: Path, path: str, *, make: bool = False) -> Path:
    """Return the local path of a model's file."""
    where = folder
    for part in path.split("/")[:-1]:
        where /= part
        if make and not where.is_symlink() and not where.exists():
            where.mkdir(exist_ok=True)
        if where.is_symlink() or (where.exists() and not where.is_dir()):
            raise DataError(f"{where} is a link or a file, but the model has a folder there; links are not followed")
    found = where / path.rpartition("/")[2]
    if found.is_symlink() or (found.exists() and not found.is_file()):
        raise DataError(f"{found} is a link or a folder, but the model has a file there; links are not followed")
    return found


def _refusal(path: str) -> str:
    parts = path.split("/")
    if path.startswith("/") or "\\" in path or {"", ".", ".."} & set(parts):
        return "is not a plain path inside the model's folder"
    if UNSEEN.search(path) or not path.isprintable():
        return "has invisible characters"
    if len(path.encode()) > _LONGEST_PATH or len(parts) > _MAX_LEVELS:
        return "is too long or too deep"
    if any(len(part.encode()) > _LONGEST_NAME for part in parts):
        return "is too long"
    # Git would run commands from the configuration of a repository inside the folder.
    if any(part.casefold().rstrip(". ") == ".git" for part in parts):
        return "is reserved for git"
    if parts[0].casefold() in (RECORD, UNFINISHED):
        return f"collides with {parts[0].casefold()}, which `get` writes"
    return ""
