"""Maps each text that equals an earlier one after normalisation to that earlier one."""

from collections.abc import Iterable
from hashlib import blake2b

from nemo_vfm.dedup.texts.normalize_text import normalize


def text_digest(text: str) -> bytes:
    """16 bytes that are equal for texts that are equal after normalize()."""
    return blake2b(normalize(text).encode("utf-8", "surrogatepass"), digest_size=16).digest()


def exact_duplicates(texts: Iterable[str]) -> dict[int, int]:
    """`{position of a copy: position of the first text that is equal after normalize()}`.

    Texts may be a stream: 16 bytes of each distinct one are kept. Two different texts get the same 16 bytes once in
    10^38 pairs.
    """
    first: dict[bytes, int] = {}
    gone: dict[int, int] = {}
    for position, text in enumerate(texts):
        kept = first.setdefault(text_digest(text), position)
        if kept != position:
            gone[position] = kept
    return gone
