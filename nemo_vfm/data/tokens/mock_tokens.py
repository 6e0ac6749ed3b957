"""Writes a small folder of made-up tokens, which training then reads as it reads any."""

from pathlib import Path

import numpy as np

from nemo_vfm.core.seed import derive
from nemo_vfm.data.tokens.token_manifest import Manifest
from nemo_vfm.data.tokens.token_writer import write_tokens

FINGERPRINT = "made-up"  #: of the tokenizer that there is not
_ROWS = 64  # at least, so that there is something to shuffle and to hold out
_MAX_TOKENS = 1 << 23
_PER_ROW = 4  # documents of a row, on average


def write_mock_tokens(folder: Path, name: str, *, vocab: int, sequence_length: int, batch_size: int) -> Manifest:
    """Documents of tokens drawn alike, long and short ones: lengths are exponential, as those of texts nearly are.

    Args:
        folder: where to.
        name: of the source, which seeds its tokens.
        vocab: every token is below it; the last one ends documents.
        sequence_length: tokens of a row; a document has a quarter of it on average.
        batch_size: rows of a global batch, of which there are a few.
    """
    rows = max(_ROWS, min(2 * batch_size, _MAX_TOKENS // sequence_length))
    numbers = np.random.Generator(np.random.PCG64(derive(0, "made-up tokens", name)))
    mean = max(1, sequence_length // _PER_ROW)
    lengths = np.clip(numbers.exponential(mean, rows * _PER_ROW).astype(np.int64), 1, 2 * sequence_length)
    # However short the documents happen to be, there is more than a row on each side.
    lengths = np.append(lengths, max(1, rows * sequence_length - int(lengths.sum())))
    tokens = numbers.integers(0, vocab, int(lengths.sum()))
    documents = [one.tolist() for one in np.split(tokens, np.cumsum(lengths)[:-1])]
    return write_tokens(folder, documents, vocab_size=vocab, end=vocab - 1, tokenizer=FINGERPRINT, per_shard=1 << 20)
