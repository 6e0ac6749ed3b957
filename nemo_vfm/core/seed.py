"""Derives numbers and generators from a seed and the names of their use. Nothing depends on rank or worker."""

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def derive(seed: int, *names: str | int) -> int:
    """A 63-bit seed that is a pure function of `seed` and `names`, equal on every machine and process."""
    text = "\x1f".join([str(seed), *map(str, names)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def generator(seed: int, *names: str | int) -> "torch.Generator":
    """A CPU generator seeded by `derive`. Drawing on the CPU keeps numbers equal on every device."""
    import torch  # those that only derive, such as curation's children, do without

    return torch.Generator().manual_seed(derive(seed, *names))
