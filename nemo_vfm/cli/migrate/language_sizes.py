"""Lists the published language models that a class or the name of a checkpoint stands for, as arguments of GPT."""

import re
from typing import NamedTuple


class Size(NamedTuple):
    """A published model.

    Args:
        width: D.
        depth: blocks.
        heads: of attention.
        groups: heads of keys and values.
        mlp_hidden: width inside the perceptron.
        vocab: tokens.
        kind: `llama` or `gpt`: norm, activation and positions.
        theta: of rotary positions.
        stretched: how many times longer than it was trained on; 0 is not.
        tied: whether the first and the last matrix are one.
    """

    width: int
    depth: int
    heads: int
    groups: int
    mlp_hidden: int
    vocab: int = 0
    kind: str = "llama"
    theta: float = 10_000.0
    stretched: float = 0.0
    tied: bool = False


#: Ingredients of ours.
PRESETS = {
    "Llama3Config8B": "llama3_8b",
    "Nemotron4Config15B": "nemotron4_15b",
    "Nemotron4Config340B": "nemotron4_340b",
}
SIZES = {
    "Llama2Config7B": Size(4096, 32, 32, 32, 11008, vocab=32_000),
    "Llama2Config13B": Size(5120, 40, 40, 40, 13824, vocab=32_000),
    "Llama2Config70B": Size(8192, 80, 64, 8, 28672, vocab=32_000),
    "Llama3Config70B": Size(8192, 80, 64, 8, 28672, vocab=128_256, theta=500_000.0),
    "Llama31Config8B": Size(4096, 32, 32, 8, 14336, vocab=128_256, theta=500_000.0, stretched=8.0),
    "Llama31Config70B": Size(8192, 80, 64, 8, 28672, vocab=128_256, theta=500_000.0, stretched=8.0),
    "Llama31Config405B": Size(16384, 126, 128, 8, 53248, vocab=128_256, theta=500_000.0, stretched=8.0),
    "Llama32Config1B": Size(2048, 16, 32, 8, 8192, vocab=128_256, theta=500_000.0, stretched=32.0, tied=True),
    "Llama32Config3B": Size(3072, 28, 24, 8, 8192, vocab=128_256, theta=500_000.0, stretched=32.0, tied=True),
    "GPTConfig126M": Size(768, 12, 12, 12, 3072, kind="gpt", tied=True),
    "GPTConfig5B": Size(4096, 24, 32, 32, 16384, kind="gpt", tied=True),
    "GPTConfig7B": Size(4096, 32, 32, 32, 10880, kind="gpt", tied=True),
    "GPTConfig20B": Size(6144, 44, 48, 48, 24576, kind="gpt", tied=True),
    "GPTConfig40B": Size(8192, 48, 64, 64, 32768, kind="gpt", tied=True),
    "GPTConfig175B": Size(12288, 96, 96, 96, 49152, kind="gpt", tied=True),
}
_NAMES = {
    r"llama-?3\.2-1b": "Llama32Config1B", r"llama-?3\.2-3b": "Llama32Config3B",
    r"llama-?3\.[13]-70b": "Llama31Config70B",
    r"llama-?3\.1-8b": "Llama31Config8B", r"llama-?3\.1-405b": "Llama31Config405B", r"llama-?3-8b": "Llama3Config8B",
    r"llama-?3-70b": "Llama3Config70B", r"llama-?2-7b": "Llama2Config7B", r"llama-?2-13b": "Llama2Config13B",
    r"llama-?2-70b": "Llama2Config70B",
}  # fmt: skip


def class_of(checkpoint: str) -> str:
    """The class of theirs whose sizes a checkpoint has, by its name; empty where it is none of these."""
    name = checkpoint.replace("Meta-", "").replace("meta-", "").replace("_", "-")
    return next((known for like, known in _NAMES.items() if re.search(like, name, re.IGNORECASE)), "")
