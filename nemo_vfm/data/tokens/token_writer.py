"""Writes documents as token shards, three files each, whole or absent, and the folder's `tokens.json`."""

import hashlib
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import numpy as np

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.storage.files import atomic_path, write_json
from nemo_vfm.data.tokens.token_manifest import ENDS, NAME, Manifest, Shard, dtype_for

_BUFFERED = 1 << 16  # documents whose ends and marks are kept until they are written


class ShardFiles:
    """One shard while it is written; nothing is there under its name until the block ends well.

    Args:
        folder: where it goes.
        name: of the shard.
        vocab_size: every token must be below it.
        end: the token that is put after each document.
    """

    def __init__(self, folder: Path, name: str, *, vocab_size: int, end: int) -> None:
        self._dtype = dtype_for(vocab_size)
        self._folder, self._name, self._vocab_size, self._end = folder, name, vocab_size, end
        self._tokens = self._documents = 0
        self._ends: list[int] = []
        self._marks: list[bytes] = []
        self._stack = ExitStack()
        self._files: dict[str, _HashedFile] = {}

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for ending in ("tokens", "ends", "marks"):
                path = stack.enter_context(atomic_path(self._folder / f"{self._name}.{ending}"))
                self._files[ending] = _HashedFile(stack.enter_context(path.open("wb")))
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            try:
                self._flush()
            except BaseException as failed:  # such as a full disk
                self._stack.__exit__(type(failed), failed, failed.__traceback__)
                raise
        self._stack.__exit__(kind, error, trace)

    def write(self, document: Sequence[int]) -> None:
        """One document without its end token, which is added. UserError if a token is not in the vocabulary."""
        numbers = np.asarray(document, np.int64)
        if numbers.size and not 0 <= int(numbers.min()) <= int(numbers.max()) < self._vocab_size:
            raise UserError(
                f"a document has tokens from {numbers.min()} to {numbers.max()}, but the tokenizer claims a "
                f"vocabulary of {self._vocab_size:,}; its vocab_size() is wrong"
            )
        data = np.append(numbers, self._end).astype(self._dtype).tobytes()
        self._files["tokens"].write(data)
        self._tokens += len(numbers) + 1
        self._documents += 1
        self._ends.append(self._tokens)
        self._marks.append(hashlib.blake2b(data, digest_size=ENDS.itemsize).digest())
        if len(self._ends) >= _BUFFERED:
            self._flush()

    def shard(self) -> Shard:
        """What was written, once the block has ended."""
        hashes = {f"{ending}_sha256": file.sha256.hexdigest() for ending, file in self._files.items()}
        return Shard(self._name, self._tokens, self._documents, **hashes)

    def _flush(self) -> None:
        self._files["ends"].write(np.array(self._ends, ENDS).tobytes())
        self._files["marks"].write(b"".join(self._marks))
        self._ends.clear()
        self._marks.clear()


class _HashedFile:
    """A file and the hash of what went into it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.sha256 = file, hashlib.sha256()

    def write(self, data: bytes) -> None:
        self._file.write(data)
        self.sha256.update(data)


def write_tokens(
    folder: Path, documents: Sequence[Sequence[int]], *, vocab_size: int, end: int, tokenizer: str, per_shard: int
) -> Manifest:
    """A whole folder from documents that are in memory.

    Args:
        documents: the tokens of each, without end tokens.
        tokenizer: fingerprint of what made them.
        per_shard: documents a shard.
    """
    shards = []
    for number, first in enumerate(range(0, len(documents), per_shard)):
        with ShardFiles(folder, f"shard-{number:06d}", vocab_size=vocab_size, end=end) as files:
            for document in documents[first : first + per_shard]:
                files.write(document)
        shards.append(files.shard())
    manifest = Manifest(tokenizer, vocab_size, end, tuple(shards), {"in": len(documents), "kept": len(documents)})
    write_json(folder / NAME, manifest.json())
    return manifest
