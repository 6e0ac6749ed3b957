"""Reads a folder of tokens: its manifest `tokens.json`, and its shards as memory-mapped arrays.

A shard is three files of little-endian numbers without headers. `NAME.tokens`: every document followed by its end
token. `NAME.ends`, uint64: where in the shard each document ends (its end token included). `NAME.marks`, uint64: a hash
of each document, by which copies of one are held out together.
"""

import json
import mmap
import os
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.storage.files import sha256_file
from nemo_vfm.core.types.component import no_component
from nemo_vfm.core.types.json_value import Json

SCHEMA = "nemo_vfm.tokens/1"
NAME = "tokens.json"
ENDS = np.dtype("<u8")  #: of `.ends` and `.marks`
Tokens = NDArray[np.uint16] | NDArray[np.uint32]
_SHARD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,100}")
_HASH = re.compile(r"[0-9a-f]{64}")
_LARGEST_VOCABULARY = 1 << 32
_MAX_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Shard:
    """One shard.

    Args:
        name: of its files, without their endings.
        tokens: how many, end tokens among them.
        documents: how many, at least 1.
        tokens_sha256, ends_sha256, marks_sha256: of its files.
    """

    name: str
    tokens: int
    documents: int
    tokens_sha256: str
    ends_sha256: str
    marks_sha256: str

    def files(self, dtype: np.dtype[np.unsignedinteger]) -> dict[str, tuple[int, str]]:
        """`{file: (bytes, sha256)}`."""
        return {
            f"{self.name}.tokens": (self.tokens * dtype.itemsize, self.tokens_sha256),
            f"{self.name}.ends": (self.documents * ENDS.itemsize, self.ends_sha256),
            f"{self.name}.marks": (self.documents * ENDS.itemsize, self.marks_sha256),
        }


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a folder holds."""

    tokenizer: str  #: fingerprint of what made the tokens
    vocab_size: int  #: every token is below it; it decides how a token is stored
    end: int  #: the token after each document
    shards: tuple[Shard, ...]  #: in the order of the documents
    counts: Json  #: how many documents were read and what became of them; as whoever wrote the folder counts

    def dtype(self) -> np.dtype[np.unsignedinteger]:
        """How a token is stored."""
        return dtype_for(self.vocab_size)

    def tokens(self) -> int:
        """Of all shards."""
        return sum(shard.tokens for shard in self.shards)

    def documents(self) -> int:
        """Of all shards."""
        return sum(shard.documents for shard in self.shards)

    def json(self) -> Json:
        """As it is written."""
        return {
            "schema": SCHEMA, "dtype": self.dtype().name, "vocab_size": self.vocab_size, "end": self.end,
            "tokenizer": self.tokenizer, "documents": self.documents(), "tokens": self.tokens(),
            "counts": self.counts, "shards": [asdict(shard) for shard in self.shards],
        }  # fmt: skip


def dtype_for(vocab_size: int) -> np.dtype[np.unsignedinteger]:
    """The smallest that holds every token, little-endian. ValueError if there is none."""
    if not 1 <= vocab_size <= _LARGEST_VOCABULARY:
        raise ValueError(f"vocab_size is {vocab_size:,}, expected 1 to {_LARGEST_VOCABULARY:,}")
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


def read_manifest(folder: Path) -> Manifest:
    """What the folder says of itself, each number checked.

    Raises:
        UserError: there is no such folder, or it was not finished.
        DataError: it is damaged or of another schema.
    """
    path = folder / NAME
    if not folder.is_dir():
        raise UserError(
            f"there is no token folder {folder}; `TokenizeText` makes one (docs/how-to/language/pretraining_data.md)"
        )
    if not path.is_file():
        started = any(folder.glob("*.tokens"))
        raise UserError(
            f"{folder} holds no {NAME}"
            + (": its shards are unfinished; run the same command again to resume"
               if started else
               ", so it is not a token folder; `TokenizeText` makes one (docs/how-to/language/pretraining_data.md)")
        )  # fmt: skip
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ValueError(f"it has {path.stat().st_size:,} bytes")
        content = json.loads(path.read_bytes())
        if not isinstance(content, dict) or content.get("schema") != SCHEMA:
            schema = content.get("schema") if isinstance(content, dict) else type(content).__name__
            raise ValueError(f"its schema is {schema!r}, expected {SCHEMA!r}")
        shards = tuple(_shard(shard) for shard in _require_type(content, "shards", list))
        vocab_size, end = _number(content, "vocab_size", 1, _LARGEST_VOCABULARY), _number(content, "end", 0)
        found = Manifest(_require_type(content, "tokenizer", str), vocab_size, end, shards, content.get("counts"))
        recorded = {name: content.get(name) for name in ("dtype", "documents", "tokens")}
        if recorded != {"dtype": found.dtype().name, "documents": found.documents(), "tokens": found.tokens()}:
            raise ValueError(f"{recorded} does not fit its shards and vocabulary of {vocab_size:,}")
        if not shards or len({shard.name for shard in shards}) < len(shards) or end >= vocab_size:
            raise ValueError(f"{len(shards)} shards and end token {end} of {vocab_size:,} are impossible")
        return found
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(
            f"{path} is damaged ({type(error).__name__}: {error}); run the tokenizing step again"
        ) from error


def _shard(content: Json) -> Shard:
    hashes = {name: _require_type(content, name, str) for name in ("tokens_sha256", "ends_sha256", "marks_sha256")}
    name = _require_type(content, "name", str)
    if not _SHARD.fullmatch(name) or not all(map(_HASH.fullmatch, hashes.values())):
        raise ValueError(f"{name[:100]!r} cannot name a shard, or its hashes are invalid")
    documents = _number(content, "documents", 1)
    return Shard(name, _number(content, "tokens", documents), documents, **hashes)


def _number(content: Json, name: str, least: int, most: int = 1 << 60) -> int:
    value: int = _require_type(content, name, int)
    if not least <= value <= most:
        raise ValueError(f"{name} is {value}, expected {least:,} to {most:,}")
    return value


def _require_type(content: Json, name: str, kind: type) -> Json:
    value = content[name]
    if type(value) is not kind:
        raise TypeError(f"{name} is {str(value)[:60]!r}, expected {kind.__name__}")
    return value


#: Files that are mapped at once: each holds a descriptor, of which a process often has 1,024.
_MAPPED = 128
_ADVICE = getattr(mmap, "MADV_WILLNEED", None)  # not everywhere
_CHECKED_AT_ONCE = 1 << 24  # tokens


@no_component
class TokenFolder:
    """The shards of one folder. Opening reads sizes alone; a page of a file is read when it is asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.manifest = folder, read_manifest(folder)
        self.dtype = self.manifest.dtype()
        for shard in self.manifest.shards:
            for name, (size, _) in shard.files(self.dtype).items():
                path = folder / name
                if not path.is_file():
                    raise DataError(
                        f"{path} is missing, though tokens.json names it; copy the whole folder, or tokenize again"
                    )
                _require_size(path, path.stat().st_size, size)
        #: Each takes the number of a shard.
        self.tokens: Callable[[int], Tokens] = lru_cache(_MAPPED)(
            lambda shard: np.frombuffer(self._map(shard), self.dtype)
        )
        self._map: Callable[[int], mmap.mmap] = lru_cache(_MAPPED)(lambda shard: self._map_file(shard, "tokens"))
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
        return np.frombuffer(self._map_file(shard, "marks"), ENDS)

    def _ends(self, shard: int) -> NDArray[np.uint64]:
        """Where each document ends, its end token included."""
        found, of = np.frombuffer(self._map_file(shard, "ends"), ENDS), self.manifest.shards[shard]
        if int(found[-1]) != of.tokens:
            raise DataError(
                f"{self.folder / of.name}.ends makes token {int(found[-1]):,} the last of {of.tokens:,}; tokenize again"
            )
        return found

    def _map_file(self, number: int, ending: str) -> mmap.mmap:
        shard = self.manifest.shards[number]
        path = self.folder / f"{shard.name}.{ending}"
        with path.open("rb") as file:
            # A map that reaches beyond the end of its file ends the process at the first touch, without a word.
            size = os.fstat(file.fileno()).st_size
            _require_size(path, size, shard.files(self.dtype)[path.name][0])
            return mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)

    def verify(self) -> None:
        """Read everything once."""
        for number, shard in enumerate(self.manifest.shards):
            for name, (_, sha256) in shard.files(self.dtype).items():
                if sha256_file(self.folder / name) != sha256:
                    raise DataError(f"{self.folder / name} does not match its checksum; run the tokenizing step again")
            tokens, ends = self.tokens(number), self.ends(number)
            most = max(int(tokens[at : at + _CHECKED_AT_ONCE].max()) for at in range(0, len(tokens), _CHECKED_AT_ONCE))
            rising = int(ends[0]) > 0 and bool((ends[1:] > ends[:-1]).all())
            if not rising or most >= self.manifest.vocab_size or (tokens[ends - 1] != self.manifest.end).any():
                raise DataError(f"{self.folder / shard.name} has tokens outside its vocabulary; tokenize again")


def _require_size(path: Path, found: int, expected: int) -> None:
    if found != expected:
        raise DataError(f"{path} has {found:,} bytes, tokens.json says {expected:,}; copy it again, or tokenize again")
