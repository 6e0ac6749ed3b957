"""Turns untrusted text into one plain line that no file, table or page can misread.

What a model says is data. It is never rendered as a template and never used as a path or a key. It is sanitised here
before it reaches a record.
"""

import re
import unicodedata

MAX_CHARS = 8000  # about 2000 tokens; the longest captions of models asked for detail have a few hundred words

# What has no place in a line of text: marks that turn the reading direction, invisible ones, tags, noncharacters.
# The joiners U+200C and U+200D stay, since Persian and Indian words and some emoji are spelled with them.
_INVISIBLE = re.compile(
    "[\u00ad\u061c\u115f\u1160\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb"
    "\ufdd0-\ufdef\ufffe\uffff\ud800-\udfff\U000e0000-\U000e007f]"
)
# Control characters, line breaks that editors do not count, characters that reorder or hide text on a screen, and the
# two below U+10000 that are none (YAML allows no others).
UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180e\u200b-\u200f"
                    "\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb\ufffe\uffff\ud800-\udfff"
                    "\U000e0000-\U000e007f]")  # fmt: skip
# Colours and bold (SGR) alone may stay; the rest of what begins with ESC, what reorders text, and bytes of a name that
# are no text, which could not be written, may not.
_STEERS = re.compile("(?!\x1b\\[[0-9;]{0,20}m)\x1b|[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f-\x9f\u061c\u200e\u200f"
                     "\u2028-\u202e\u2066-\u2069\ud800-\udfff]")  # fmt: skip
_FORMULA = "=+-@"  # a spreadsheet takes a cell that begins so for a formula


def clean(text: str, max_chars: int = MAX_CHARS) -> str:
    """The text as one line: NFC, no control characters, at most `max_chars` characters, cut between two words."""
    text = text[: 4 * max_chars]  # a megabyte of marks need not be looked at
    text = _INVISIBLE.sub("", text)
    spaced = "".join(" " if unicodedata.category(char) in ("Cc", "Zl", "Zp", "Zs") else char for char in text)
    line = unicodedata.normalize("NFC", " ".join(spaced.split()))
    line = line.lstrip(_FORMULA + " ")
    kept = line[:max_chars]
    return kept if len(line) <= max_chars else kept.rpartition(" ")[0] or kept


def beginning(said: object, longest: int = 200) -> str:
    """The beginning of what a library says, such as its error, which may be a page: as one line."""
    return " ".join(str(said).split())[:longest]


def printable(text: str, longest: int) -> str:
    """One line that cannot fill the screen or steer the terminal, whoever wrote the text: `?` for what could."""
    shown = text if len(text) <= longest else f"{text[: longest - 3]}..."
    shown = UNSEEN.sub("?", shown.replace("\n", " ").replace("\t", " "))
    return "".join(c if c.isprintable() else "?" for c in shown)


def strip_controls(text: str) -> str:
    """A text that keeps its lines and colours, and nothing else that steers a terminal: no link, title or move."""
    return _STEERS.sub("?", text)
