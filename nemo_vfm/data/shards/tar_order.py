"""Streams samples from any sample number, epoch after epoch; the order follows from the tars and a seed.

The stream is the tars of an epoch in shuffled order, each from front to back. It is cut into blocks, and each block is
shuffled by its own permutation. So a sample's position follows from its number. A resume begins at the start of a
block, and earlier tars with a known count are not read.
"""

import itertools
from collections.abc import Iterator, Sequence

import torch

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.seed import generator
from nemo_vfm.core.storage.files import sha256_text
from nemo_vfm.data.shards.sample_census import Census
from nemo_vfm.data.shards.tar_counts import TarCounts
from nemo_vfm.data.shards.tar_stream import Raw, Tar, samples_of


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
        """Samples `first`, `first` + 1, ... without end.

        Raises:
            UserError: a tar is missing, or all are empty.
            StoreError: the store does not answer.
        """
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
                for count, sample in enumerate(self._counted(tar), 1):
                    found += 1
                    if count > left:
                        yield sample
                left = max(0, left - (self._counts.get(tar) or 0))
            if not found:
                raise UserError(f"none of the {len(self._tars)} tars holds a sample that can be read")

    def _counted(self, tar: Tar) -> Iterator[Raw]:
        count, is_new = 0, tar.name in self._unseen
        for sample in samples_of(tar, max_member_bytes=self._max_member_bytes):
            count += 1
            if is_new:
                self._census.add(sample, sample.entry)
            yield sample
        self._counts.put(tar, count)
        if is_new:
            self._tell(tar)

    def _tell(self, tar: Tar) -> None:
        """Say what training does not see, of the first tar as soon as it is read, and of all."""
        self._unseen.discard(tar.name)
        num_read = len(self._tars) - len(self._unseen)
        if not self._unseen:
            self._census.tell(tar.name if len(self._tars) == 1 else f"the {len(self._tars)} tars")
        elif num_read == 1:
            self._census.tell(tar.name)

    def _permutation(self, count: int, *names: str | int) -> list[int]:
        if self._block == 1:
            return list(range(count))
        numbers: list[int] = torch.randperm(count, generator=generator(self._seed, "stream", *names)).tolist()
        return numbers
