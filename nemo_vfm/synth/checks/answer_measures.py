"""Measures what an instruction may ask of an answer: words, sentences, paragraphs, bullets, highlights and the like.

Each takes a time in proportion to the text: a model may write a hundred thousand dots.
"""

import json
import re

from nemo_vfm.core.types.json_value import no_json_number

_ABBREVIATED = re.compile(
    r"\b(?:Mr|Mrs|Ms|Dr|Prof|St|Jr|Sr|vs|etc|No|Fig|approx|e\.g|i\.e|P\.\s?P\.\s?S|P\.\s?S)\.", re.IGNORECASE
)
_INSIDE = re.compile(r"(?<=\w)\.(?=\w)")
_LIST_MARK = re.compile(r"^[\s>*#-]*\(?(?:\d{1,3}|[A-Za-z])[.)]\s+")
_CLOSING = "[\"'\u201d\u2019\u300d\u300f\uff09)\\]*_]*+"
#: Chinese and Japanese leave no space after a sentence; Arabic, Urdu and Hindi have stops of their own.
_END = re.compile(
    rf"(?<![.!?\u061f\u06d4\u0964])[.!?\u061f\u06d4\u0964]++{_CLOSING}(?:\s+|$)"
    rf"|[\u3002\uff01\uff1f\uff61]++{_CLOSING}\s*"
)
#: Of any script that has one.
COMMA = re.compile("[,\u060c\u3001\ufe50\ufe51\uff0c\uff64]")
_BULLET = re.compile(r"^[ \t]*[*-][ \t]+\S", re.MULTILINE)
_HIGHLIGHT = re.compile(r"(?<!\*)(\*{1,2})(?=[^\s*])[^*\n]*(?<=[^\s*])\1(?!\*)")


def words(text: str) -> list[str]:
    """Runs of letters and digits, as Zhou et al. 2023 count them: "don't" is two."""
    return re.findall(r"\w+", text)


def occurrences(word: str, text: str) -> int:
    """How often a word or phrase stands in a text as a whole, in capitals or not."""
    return len(re.findall(rf"(?<!\w){re.escape(word)}(?!\w)", text, re.IGNORECASE))


def num_sentences(text: str) -> int:
    """Pieces that end with a full stop, question mark or exclamation mark, or with their line, and hold a word.

    Stops of common abbreviations, of numbers, within words and of list marks, such as "1. ", end none.
    """
    plain = _INSIDE.sub("_", _ABBREVIATED.sub("x", text))
    lines = [_LIST_MARK.sub("", line) for line in plain.splitlines()]
    return sum(bool(words(piece)) for line in lines for piece in _END.split(line))


def paragraphs(text: str) -> list[str]:
    """Parts between blank lines."""
    return [part.strip() for part in re.split(r"\n\s*\n", text) if part.strip()]


def divided_parts(text: str) -> list[str]:
    """Parts between lines that are `***`. An empty one between two others stays; at either end it does not count."""
    parts = [part.strip() for part in re.split(r"^[ \t]*\*\*\*[ \t]*$", text, flags=re.MULTILINE)]
    begin, end = int(not parts[0]), len(parts) - int(not parts[-1])
    return parts[begin:end]


def num_bullets(text: str) -> int:
    """Lines that begin with `*` or `-` and a space: neither emphasis nor a rule is a bullet."""
    return len(_BULLET.findall(text))


def num_highlights(text: str) -> int:
    """Passages within one line between single or double asterisks."""
    return sum(bool(match[0].strip("*").strip()) for match in _HIGHLIGHT.finditer(text))


def num_placeholders(text: str) -> int:
    """Words in square brackets, such as [name]."""
    return len(re.findall(r"\[[^\[\]\n]+\]", text))


def section_numbers(text: str, marker: str) -> list[int]:
    """The numbers of lines that begin with the marker and a number."""
    found = re.findall(rf"^[^\w\n]*{re.escape(marker)}[ \t]+(\d{{1,3}})\b", text, re.MULTILINE)
    return [int(number) for number in found]


def first_word(paragraph: str) -> str:
    """In small letters, without punctuation around it."""
    found = re.search(r"\w(?:.*\w)?", next(iter(paragraph.split(maxsplit=1)), ""))
    return found[0].lower() if found else ""


def is_json_object(text: str) -> bool:
    """Whether all of it is one JSON object; a fence around it does no harm."""
    inside = text.strip()
    if inside.startswith("```"):
        inside = re.sub(r"\Ajson\b", "", inside.removeprefix("```").removesuffix("```"), flags=re.IGNORECASE)
    try:
        return isinstance(json.loads(inside, parse_constant=no_json_number), dict)
    except (ValueError, RecursionError):
        return False


def normalise(text: str) -> str:
    """In small letters, with single spaces: for comparing phrases."""
    return " ".join(text.split()).casefold()
