"""Normalises texts before they are compared, and splits them into words."""

import re
import sys
import unicodedata
from functools import cache

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
