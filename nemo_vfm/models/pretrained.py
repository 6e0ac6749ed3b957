"""Checks that a folder of transformers or diffusers may be loaded, reads its settings and computes its fingerprint.

Nothing is downloaded and no code of the folder is run: weights are safetensors, and the model must be one that the
installed library knows.
"""

import json
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.storage.files import sha256_file, sha256_text
from nemo_vfm.core.types.json_value import Json, each_key_once
from nemo_vfm.models.hub.hub_names import RECORD, get_hint

#: The index of a pipeline of diffusers.
PIPELINE = "model_index.json"
_MAX_JSON_BYTES = 16 << 20
#: Files that say what a model does. Others, such as a README, may change without changing it.
_SAY = (".safetensors", ".json", ".jinja", ".txt", ".model")


def checked_folder(folder: Path) -> Path:
    """The folder, where it holds a model that may be loaded; UserError where there is none, or only pickles."""
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder; {get_hint(folder)} downloads a model")
    if not (folder / "config.json").is_file():
        raise UserError(
            f"{folder} has no config.json, so it is not a model's folder; a hub's cache keeps it deeper down"
        )
    if not list(folder.glob("*.safetensors")):
        pickles = sorted(path.name for path in folder.iterdir() if path.suffix in (".bin", ".pt", ".pth", ".ckpt"))
        hint = f", only {pickles[0]}, which could run code; convert it first" if pickles else ""
        raise UserError(f"{folder} has no weights as safetensors{hint}")
    return folder


def read_mapping(path: Path) -> dict[str, Json]:
    """A JSON file of a model's folder; DataError where it is unreadable, too long or no mapping, or has a key twice."""
    try:
        if path.stat().st_size > _MAX_JSON_BYTES:
            raise ValueError("it is far too long")
        found = json.loads(path.read_bytes(), object_pairs_hook=each_key_once)
        if not isinstance(found, dict):
            raise ValueError("it is not a mapping")
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path.parent.name}/{path.name} cannot be read: {error}") from error
    return found


def told_mapping(path: Path) -> dict[str, Json]:
    """A JSON file of somebody else's, as far as it is a mapping; else empty."""
    try:
        found = json.loads(path.read_bytes()) if path.stat().st_size <= _MAX_JSON_BYTES else None
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def files_sha256(path: Path) -> str:
    """The sha256 of a file, or of all safetensors and JSON files right inside a folder and of their names."""
    if path.is_file():
        return _sha256(path)
    found = sorted(file for end in ("*.safetensors", "*.json") for file in path.glob(end) if file.name != RECORD)
    if not found:
        raise UserError(f"{path} holds no model: neither safetensors nor JSON files are there")
    return sha256_text(" ".join(f"{file.name}:{_sha256(file)}" for file in found))


def fingerprint_of(folder: Path) -> str:
    """16 hexadecimal digits that change with any byte of the model; known files are not read again."""
    return tokenizer_fingerprint(checked_folder(folder))


def tokenizer_fingerprint(folder: Path) -> str:
    """The same for a folder without weights."""
    files = sorted(path for path in folder.iterdir() if path.suffix in _SAY and path.name != RECORD and path.is_file())
    return sha256("\n".join(f"{path.name} {_sha256(path)}" for path in files).encode()).hexdigest()[:16]


def _sha256(file: Path) -> str:
    """Kept while the file is as it was: weights of gigabytes are asked for by several stages."""
    stat = file.stat()
    return _hash(file, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=4096)
def _hash(path: Path, size: int, mtime_ns: int) -> str:
    return sha256_file(path)
