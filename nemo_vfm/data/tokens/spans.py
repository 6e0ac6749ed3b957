"""Computes where in a stream a numbered span begins; spans are equally long and come in shuffled order.

A stream that restarts after its end is one endless line, cut into spans. Span j is its j-th part, so where the length
does not divide the stream, each epoch is cut elsewhere. The spans that begin in an epoch are shuffled among each other.
So every token comes once per epoch, a position is found by arithmetic alone, and the order's whole state is the number.
"""

import numpy as np
from numpy.typing import NDArray

from nemo_vfm.data.tokens.memo import Memo
from nemo_vfm.data.tokens.shuffle import shuffled

_BLOCK = 512  # spans that are computed together: numpy takes as long for one


class Spans:
    """Spans 0, 1, 2, ... of a stream, without end.

    Args:
        num_tokens: of the stream.
        length: of a span, in tokens; at most as many.
        seed: of the order.
        shuffle: False gives them as they lie.
    """

    def __init__(self, num_tokens: int, length: int, *, seed: int, shuffle: bool = True) -> None:
        if not 1 <= length <= num_tokens:
            raise ValueError(f"a stream of {num_tokens:,} tokens has no span of {length:,}")
        self._num_tokens, self._length, self._seed, self._shuffle = num_tokens, length, seed, shuffle
        self._blocks: Memo[NDArray[np.int64]] = Memo(8)

    def starts(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Positions of the first tokens of spans."""
        blocks, places = numbers // _BLOCK, numbers % _BLOCK
        if blocks[0] == blocks[-1]:  # the rows of a batch are neighbours, so mostly
            return self._blocks.get(int(blocks[0]), self._block)[places]
        each = [self._blocks.get(block, self._block)[place] for block, place in zip(blocks, places, strict=True)]
        return np.array(each, np.int64)

    def _block(self, block: int) -> NDArray[np.int64]:
        numbers = np.arange(block * _BLOCK, (block + 1) * _BLOCK)
        epochs = numbers * self._length // self._num_tokens
        for epoch in np.unique(epochs).tolist() if self._shuffle else ():
            ours = epochs == epoch
            first, after = self.before(epoch), self.before(epoch + 1)
            numbers[ours] = first + shuffled(numbers[ours] - first, after - first, self._seed, "spans", epoch)
        return numbers * self._length % self._num_tokens

    def before(self, epoch: int) -> int:
        """How many spans begin before an epoch does."""
        return -(-epoch * self._num_tokens // self._length)
