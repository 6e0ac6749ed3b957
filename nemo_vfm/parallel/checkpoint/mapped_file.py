"""Opens a safetensors file whose tensors are read one after another, in little memory.

safetensors maps the file, and every page read stays in memory until the file is unmapped. So it is mapped again after
every 64 MB; otherwise a file of many gigabytes would end up in memory as a whole.
"""

from pathlib import Path
from typing import Any

from torch import Tensor

_MOST_BYTES = 64 << 20


class MappedFile:
    """A file of safetensors.

    Args:
        path: path of the file, which must not change.

    Raises:
        SafetensorError: the file is not safetensors.
        OSError: the file cannot be read, or has changed since it was opened.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._seen = path, _seen(path)
        self._file: Any = None  # safetensors has no type for it
        self._read = 0
        self._opened()

    def keys(self) -> list[str]:
        """Names of its tensors."""
        return list(self._file.keys())

    def metadata(self) -> dict[str, str]:
        """The metadata in the header."""
        return dict(self._file.metadata() or {})

    def get_slice(self, name: str) -> Any:
        """The shape and the dtype of a tensor, without reading it."""
        return self._opened().get_slice(name)

    def get_tensor(self, name: str) -> Tensor:
        """All of a tensor."""
        tensor: Tensor = self._opened().get_tensor(name)
        self._read += tensor.nbytes
        return tensor

    def part(self, name: str, index: tuple[slice, ...]) -> Tensor:
        """A part of a tensor that has dimensions."""
        tensor: Tensor = self._opened().get_slice(name)[index]
        self._read += tensor.nbytes
        return tensor

    def close(self) -> None:
        """Unmap the file; tensors read so far stay valid."""
        self._file = None

    def _opened(self) -> Any:
        if self._file is None or self._read > _MOST_BYTES:
            from safetensors import safe_open

            if _seen(self.path) != self._seen:
                raise OSError(f"{self.path} changed while it was read")
            self._file, self._read = safe_open(self.path, framework="pt"), 0
        return self._file


def _seen(path: Path) -> tuple[int, ...]:
    found = path.stat()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
