"""Computes one hash of the weights and settings of a file or a model's folder."""

from functools import lru_cache
from pathlib import Path

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.storage.files import sha256_file, sha256_text
from nemo_vfm.models.hub.file_names import RECORD


def files_sha256(path: Path) -> str:
    """The sha256 of a file, or of all safetensors and JSON files right inside a folder and of their names.

    Raises:
        UserError: there is nothing.
    """
    if path.is_file():
        return _known(path)
    found = sorted(file for end in ("*.safetensors", "*.json") for file in path.glob(end) if file.name != RECORD)
    if not found:
        raise UserError(f"{path} holds no model: neither safetensors nor JSON files are there")
    return sha256_text(" ".join(f"{file.name}:{_known(file)}" for file in found))


def _known(file: Path) -> str:
    stat = file.stat()
    return _hashed(file, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=256)
def _hashed(file: Path, size: int, mtime_ns: int) -> str:
    """Kept while the file is as it was: weights of gigabytes are asked for by several stages."""
    return sha256_file(file)
