"""Normalises texts before they are compared, splits them into words, and finds those that are then equal."""

import re
import sys
import unicodedata
from collections.abc import Iterable
from functools import cache
from hashlib import blake2b

# Soft hyphens, joiners and direction marks: nobody sees them, and one of them would make a copy another text.
_INVISIBLE = re.compile("[\u00ad\u034f\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff]")
# Chinese and Japanese put no spaces between words, so each of their characters is a word.
_IDEOGRAPHS = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_WORD = re.compile(f"[{_IDEOGRAPHS}]|[^\\W_{_IDEOGRAPHS}]+")


def normalize(text: str) -> str:
    """The text in NFKC, case folded, without invisible characters, each run of white space as one space.

    Of more than 30 combining marks in a row 30 stay (the limit of Unicode's stream-safe format, UAX 15): putting a run
    in order takes the square of its length. Normalising twice changes nothing more.
    """
    if not text.isascii():
        # Folding may take a text out of NFKC, and NFKC may bring back a letter with a case, hence both twice.
        for _ in range(2):
            text = _long_runs_of_marks().sub(r"\1", _INVISIBLE.sub("", text))
            text = unicodedata.normalize("NFKC", text).casefold()
        text = unicodedata.normalize("NFKC", text)
    return " ".join(text.lower().split())


def words(text: str) -> list[str]:
    """The words of a text after `normalize`: runs of letters and digits; an ideograph or a kana is one by itself."""
    return _WORD.findall(normalize(text))


@cache
def _long_runs_of_marks() -> re.Pattern[str]:
    marks = "".join(chr(code) for code in range(0x300, sys.maxunicode + 1) if unicodedata.combining(chr(code)))
    return re.compile(f"([{marks}]{{30}})[{marks}]+")


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
