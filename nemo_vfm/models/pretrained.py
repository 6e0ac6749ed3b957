"""Checks that a folder of transformers or diffusers may be loaded, and computes its fingerprint.

Nothing is downloaded and no code of the folder is run: weights are safetensors, and the model must be one that the
installed library knows.
"""

from functools import lru_cache
from hashlib import sha256
from pathlib import Path

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.storage.files import sha256_file
from nemo_vfm.models.hub.file_names import RECORD
from nemo_vfm.models.hub.hub_address import get_hint

#: Files that say what a model does. Others, such as a README, may change without changing it.
_SAY = (".safetensors", ".json", ".jinja", ".txt", ".model")


def checked_folder(folder: Path) -> Path:
    """The folder, where it holds a model that may be loaded.

    Raises:
        UserError: it is absent, or not such a folder, or its weights are pickles.
    """
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


def fingerprint_of(folder: Path) -> str:
    """16 hexadecimal digits that change with any byte of the model; known files are not read again."""
    return tokenizer_fingerprint(checked_folder(folder))


def tokenizer_fingerprint(folder: Path) -> str:
    """The same for a folder without weights."""
    files = sorted(path for path in folder.iterdir() if path.suffix in _SAY and path.name != RECORD and path.is_file())
    parts = [f"{path.name} {_hash(path, path.stat().st_size, path.stat().st_mtime_ns)}" for path in files]
    return sha256("\n".join(parts).encode()).hexdigest()[:16]


@lru_cache(maxsize=4096)
def _hash(path: Path, size: int, mtime_ns: int) -> str:
    return sha256_file(path)
