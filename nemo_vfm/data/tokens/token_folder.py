"""Opens the shards of a folder of tokens as memory-mapped arrays."""

import mmap
import os
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nemo_vfm.core.errors import DataError
from nemo_vfm.core.storage.files import sha256_file
from nemo_vfm.core.types.component import no_component
from nemo_vfm.data.tokens.token_manifest import ENDS, Shard, Tokens, read_manifest

#: Files that are mapped at once: each holds a descriptor, of which a process often has 1,024.
_MAPPED = 128
_ADVICE = getattr(mmap, "MADV_WILLNEED", None)  # not everywhere
_CHECKED_AT_ONCE = 1 << 24  # tokens


@no_component
class TokenFolder:
    """The shards of one folder. Opening reads sizes alone; a page of a file is read when it is asked for.

    Args:
        folder: has `tokens.json`.

    Raises:
        UserError: it is none, or was not finished.
        DataError: its manifest is damaged, or a file has another size than it says.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.manifest = folder, read_manifest(folder)
        self.dtype = self.manifest.dtype()
        for shard in self.manifest.shards:
            _require_sizes(folder, shard, self.dtype)
        #: Each takes the number of a shard.
        self.tokens: Callable[[int], Tokens] = lru_cache(_MAPPED)(self._tokens)
        self._map: Callable[[int], mmap.mmap] = lru_cache(_MAPPED)(self._map_of)
        self.ends: Callable[[int], NDArray[np.uint64]] = lru_cache(_MAPPED)(self._ends)

    def __reduce__(self) -> tuple[type["TokenFolder"], tuple[Path]]:
        return TokenFolder, (self.folder,)  # maps are not sent to another process, it makes its own

    def need(self, shard: int, begin: int, count: int) -> None:
        """Have these tokens read from the disk, without waiting for them.

        Rows at random places of a file that is not in memory took 1.7 to 2.9 ms each as they were touched, since the
        system reads ahead of each; asked for together before, 0.05 ms (rows of 8 KiB, a read-ahead of 8 MiB, 2 busy
        cores, 2026-11).
        """
        if _ADVICE is not None:
            width = self.dtype.itemsize
            low = begin * width // mmap.PAGESIZE * mmap.PAGESIZE
            self._map(shard).madvise(_ADVICE, low, (begin + count) * width - low)

    def marks(self, shard: int) -> NDArray[np.uint64]:
        """A hash of each document."""
        return np.frombuffer(self._opened(shard, "marks"), ENDS)

    def _tokens(self, shard: int) -> Tokens:
        return np.frombuffer(self._map(shard), self.dtype)

    def _map_of(self, shard: int) -> mmap.mmap:
        return self._opened(shard, "tokens")

    def _ends(self, shard: int) -> NDArray[np.uint64]:
        """Where each document ends, its end token included."""
        found, of = np.frombuffer(self._opened(shard, "ends"), ENDS), self.manifest.shards[shard]
        if int(found[-1]) != of.tokens:
            raise DataError(
                f"{self.folder / of.name}.ends makes token {int(found[-1]):,} the last of {of.tokens:,}; tokenize again"
            )
        return found

    def _opened(self, number: int, ending: str) -> mmap.mmap:
        shard = self.manifest.shards[number]
        path = self.folder / f"{shard.name}.{ending}"
        with path.open("rb") as file:
            # A map that reaches beyond the end of its file ends the process at the first touch, without a word.
            size = os.fstat(file.fileno()).st_size
            _require_size(path, size, shard.files(self.dtype)[path.name][0])
            return mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)

    def verify(self) -> None:
        """Read everything once.

        Raises:
            DataError: a file is not what was written, or does not make sense.
        """
        for number, shard in enumerate(self.manifest.shards):
            for name, (_, sha256) in shard.files(self.dtype).items():
                if sha256_file(self.folder / name) != sha256:
                    raise DataError(f"{self.folder / name} does not match its checksum; run the tokenizing step again")
            self._require_sense(number, shard)

    def _require_sense(self, number: int, shard: Shard) -> None:
        tokens, ends = self.tokens(number), self.ends(number)
        most = max(int(tokens[at : at + _CHECKED_AT_ONCE].max()) for at in range(0, len(tokens), _CHECKED_AT_ONCE))
        rising = int(ends[0]) > 0 and bool((ends[1:] > ends[:-1]).all())
        if not rising or most >= self.manifest.vocab_size or (tokens[ends - 1] != self.manifest.end).any():
            raise DataError(f"{self.folder / shard.name} has tokens outside its vocabulary; tokenize again")


def _require_sizes(folder: Path, shard: Shard, dtype: np.dtype[np.unsignedinteger]) -> None:
    for name, (size, _) in shard.files(dtype).items():
        path = folder / name
        if not path.is_file():
            raise DataError(f"{path} is missing, though tokens.json names it; copy the whole folder, or tokenize again")
        _require_size(path, path.stat().st_size, size)


def _require_size(path: Path, found: int, expected: int) -> None:
    if found != expected:
        raise DataError(f"{path} has {found:,} bytes, tokens.json says {expected:,}; copy it again, or tokenize again")
