"""Streams samples from any sample number, epoch after epoch; the order follows from the tars and a seed.

The stream is the tars of an epoch in shuffled order, each from front to back. It is cut into blocks, and each block is
shuffled by its own permutation. So a sample's position follows from its number. A resume begins at the start of a
block, and earlier tars with a known count are not read.
"""

import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.log import warn
from nemo_vfm.core.seed import generator
from nemo_vfm.core.storage.files import sha256_text, write_json
from nemo_vfm.core.storage.write_path import require_own
from nemo_vfm.core.types.component import no_component
from nemo_vfm.data.shards.sample_reader import Census
from nemo_vfm.data.shards.tar_stream import Raw, Tar, samples_of

COUNTS_SCHEMA = "nemo_vfm.tar_counts/2"  # 1 counted fewer names of members
_BEGINNING = b'{\n "schema": "nemo_vfm.tar_counts/'  # of every version
_MAX_BYTES = 256 << 20


@no_component
class TarCounts:
    """Counts by tar, in memory, and in a file where one is given.

    Args:
        path: the file; None forgets at the end.
    """

    def __init__(self, path: Path | None) -> None:
        if path is not None:
            require_own(path, _BEGINNING, "a file of tar counts")
        self._path = path
        self._counts: dict[str, tuple[int | None, int]] = _read(path)
        self._sizes: dict[str, int | None] = {}

    def get(self, tar: Tar) -> int | None:
        """How many samples it has; None where nobody knows, or it has another size than when they were counted."""
        size, count = self._counts.get(tar.name, (None, None))
        return count if count is not None and size == self._size(tar) else None

    def put(self, tar: Tar, count: int) -> None:
        """Note what was counted up to the tar's end."""
        if self._counts.get(tar.name) == (self._size(tar), count):
            return
        self._counts[tar.name] = self._size(tar), count
        if self._path is not None:
            write_json(self._path, {"schema": COUNTS_SCHEMA, "tars": {n: list(c) for n, c in self._counts.items()}})

    def _size(self, tar: Tar) -> int | None:
        if tar.name not in self._sizes:
            self._sizes[tar.name] = tar.size()
        return self._sizes[tar.name]


def _read(path: Path | None) -> dict[str, tuple[int | None, int]]:
    if path is None or not path.is_file():
        return {}
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ValueError(f"it has more than {_MAX_BYTES:,} bytes")
        content = json.loads(path.read_bytes())
        if content["schema"] != COUNTS_SCHEMA:
            raise ValueError(f"its schema is {content['schema']!r}")
        return {
            str(name): (size, count)
            for name, (size, count) in content["tars"].items()
            if type(count) is int and count >= 0 and (size is None or type(size) is int)
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        warn(f"{path} is ignored ({error}), and the tars are counted again")
        return {}


class TarOrder:
    """The endless order of the samples of some tars.

    Args:
        tars: all of them.
        counts: what is known of them, and where more is noted.
        block: samples that are shuffled together; 1 keeps the tars' order and that within.
        seed: of the shuffles.
        max_member_bytes: larger members are left out.
    """

    def __init__(self, tars: Sequence[Tar], counts: TarCounts, block: int, *, seed: int, max_member_bytes: int) -> None:
        self._tars, self._counts, self._block = tuple(tars), counts, block
        self._seed, self._max_member_bytes = seed, max_member_bytes
        self._census, self._unseen = Census(), {tar.name for tar in tars}

    def samples(self, first: int) -> Iterator[Raw]:
        """Samples `first`, `first` + 1, ... without end."""
        start, skip = divmod(first, self._block)
        stream = self._stream(start * self._block)
        for number in itertools.count(start):
            held = list(itertools.islice(stream, self._block))
            order = self._permutation(len(held), "block", number)
            for place in order[skip:]:
                yield held[place]
            skip = 0

    def digest(self) -> str:
        """Of all that says which sample is number n."""
        return sha256_text("\n".join([f"{self._seed} {self._block}", *(tar.name for tar in self._tars)]))[:16]

    def known_total(self) -> int | None:
        """Samples of all tars; None where one was never read to its end."""
        counts = [self._counts.get(tar) for tar in self._tars]
        return None if None in counts else sum(count for count in counts if count is not None)

    def _stream(self, first: int) -> Iterator[Raw]:
        """The tars' samples from number `first` on, before blocks are shuffled."""
        left = first
        total = self.known_total()
        epoch, left = divmod(left, total) if total else (0, left)
        for number in itertools.count(epoch):
            found = 0
            for place in self._permutation(len(self._tars), "tars", number):
                tar = self._tars[place]
                known = self._counts.get(tar)
                if known is not None and known <= left:
                    left, found = left - known, found + known
                    continue
                for count, sample in enumerate(self._count_samples(tar), 1):
                    found += 1
                    if count > left:
                        yield sample
                left = max(0, left - (self._counts.get(tar) or 0))
            if not found:
                raise UserError(f"none of the {len(self._tars)} tars holds a sample that can be read")

    def _count_samples(self, tar: Tar) -> Iterator[Raw]:
        count, is_new = 0, tar.name in self._unseen
        for sample in samples_of(tar, max_member_bytes=self._max_member_bytes):
            count += 1
            if is_new:
                self._census.add(sample, sample.entry)
            yield sample
        self._counts.put(tar, count)
        if is_new:  # say what training does not see, of the first tar as soon as it is read, and of all
            self._unseen.discard(tar.name)
            if not self._unseen:
                self._census.tell(tar.name if len(self._tars) == 1 else f"the {len(self._tars)} tars")
            elif len(self._tars) - len(self._unseen) == 1:
                self._census.tell(tar.name)

    def _permutation(self, count: int, *names: str | int) -> list[int]:
        if self._block == 1:
            return list(range(count))
        numbers: list[int] = torch.randperm(count, generator=generator(self._seed, "stream", *names)).tolist()
        return numbers
