"""Makes small folders of tokens in which every token says where it was."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from nemo_vfm.data.tokens.token_writer import write_tokens

TokenFolders = Callable[..., Path]


def lengths(count: int, seed: int = 0, longest: int = 90) -> list[int]:
    """Tokens of so many documents, end tokens not counted; some are empty."""
    drawn = np.random.default_rng(seed).lognormal(2.2, 1.0, count)
    return np.minimum(drawn.astype(int), longest).tolist()


def numbered(sizes: list[int]) -> list[list[int]]:
    """Documents whose tokens are 0, 1, 2, ... through all of them, each leaving out one number for its end token."""
    found, at = [], 0
    for size in sizes:
        found.append(list(range(at, at + size)))
        at += size + 1
    return found


@pytest.fixture
def token_folder(tmp_path: Path) -> TokenFolders:
    """Makes a folder: `token_folder(sizes, name="text", per_shard=40)`; its end token is the vocabulary's last."""

    def make(sizes: list[int], name: str = "text", per_shard: int = 40, tokenizer: str = "t" * 64) -> Path:
        vocab_size = 100_000
        write_tokens(
            tmp_path / name, numbered(sizes), vocab_size=vocab_size, end=vocab_size - 1, tokenizer=tokenizer,
            per_shard=per_shard,
        )  # fmt: skip
        return tmp_path / name

    return make
