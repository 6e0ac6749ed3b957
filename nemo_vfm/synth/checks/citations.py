"""Finds the quotations of an answer, and which of them do not stand in a document."""

import re
import unicodedata

_PAIRS = re.compile(
    r"\u201e([^\u201c\u201d\u201e]+)[\u201c\u201d]|\u201c([^\u201c\u201d]+)\u201d|\u00ab([^\u00ab\u00bb]+)\u00bb"
)
_STRAIGHT = re.compile(r"(?<!\w)\"(?=\S)([^\"]+)\"(?!\w)")
_BLOCK = re.compile(r"(?:^[ \t]*>[^\n]*(?:\n|\Z))+", re.MULTILINE)
_SIGNS = str.maketrans({**dict.fromkeys("\u2018\u2019\u201a\u201b\u2032`", "'"), "\u00ad": None,
                        **dict.fromkeys("\u201c\u201d\u201e\u201f\u00ab\u00bb\u2033", '"'),
                        **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212", "-")})  # fmt: skip
_ELLIPSIS = re.compile(r"[\[(]\s*(?:\u2026|\.\s?\.\s?\.)\s*[\])]|\u2026|\.\s?\.\s?\.+")
_EDGE = " .,;:!?'\"-"


def quotations(answer: str, min_words: int = 1) -> list[str]:
    """What an answer quotes: between double quotation marks of any kind, and lines that begin with >.

    Single marks are not read, as they are apostrophes too. A mark that is not closed in its paragraph begins nothing.

    Args:
        min_words: shorter ones are left out, such as words that are only mentioned.

    Returns:
        each as it is written, without its marks, in the order of the answer.
    """
    found: list[tuple[int, str]] = []
    for block in _BLOCK.finditer(answer):
        found.append((block.start(), re.sub(r"^[ \t]*>[ \t]?", "", block[0], flags=re.MULTILINE).strip()))
    begin = 0
    for paragraph in re.split(r"(\n[ \t]*\n)", _BLOCK.sub(lambda block: " " * len(block[0]), answer)):
        for pattern in (_PAIRS, _STRAIGHT):
            for match in pattern.finditer(paragraph):
                found.append((begin + match.start(), next(filter(None, match.groups()))))
        begin += len(paragraph)
    return [text for _, text in sorted(found) if len(re.findall(r"\w+", text)) >= min_words]


def missing_quotations(answer: str, document: str, min_words: int = 1) -> list[str]:
    """The quotations of an answer that do not stand in a document.

    White space, kinds of quotation marks and dashes, and signs at the edges of a quotation do not matter; capitals do.
    An ellipsis in a quotation splits it: its parts must stand in the document as whole words, in their order.

    Returns:
        each as it is written in the answer; empty where all are found, or nothing is quoted.
    """
    text = _normal(document)
    quoted = quotations(answer, min_words)
    stands = {}
    for one in dict.fromkeys(quoted):
        parts = [part for part in (_normal(part).strip(_EDGE) for part in _ELLIPSIS.split(one)) if part]
        begin, stands[one] = 0, bool(parts)
        for part in parts:
            # As whole words: no letter or digit stands right before or after.
            if (found := re.compile(rf"(?<!\w){re.escape(part)}(?!\w)").search(text, begin)) is None:
                stands[one] = False
                break
            begin = found.end()
    return [one for one in quoted if not stands[one]]


def _normal(text: str) -> str:
    """With one kind of white space, quotation mark and dash."""
    plain = " ".join(unicodedata.normalize("NFKC", text.translate(_SIGNS)).split())
    return re.sub(r" ?-+ ?", "-", plain)
