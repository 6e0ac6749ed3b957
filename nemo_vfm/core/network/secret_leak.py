"""Finds values of the environment in a request before it is sent: the last line of defence after `check`."""

import base64
import binascii
import re
from collections.abc import Iterator, Sequence

from nemo_vfm.core.secret import forms, is_key
from nemo_vfm.core.types.json_value import Json

MIN_LENGTH = 4  # a request that may hold no `1` and no `en` cannot be asked
_WHOLE_WORDS = 8  # shorter values are looked for as whole words: `cat` stands in `location`
#: Words of the protocol, which a user or a machine may be called, too.
_PROTOCOL = frozenset({"user", "system", "assistant", "text", "image_url", "video_url"})
_DATA = re.compile(r"data:[\w/+.-]+;base64,")


def leaked(question: Json, withheld: Sequence[tuple[str, str]]) -> str:
    """The name of the first variable whose value a request holds; empty where it holds none.

    Args:
        withheld: (variable, value) of what the recipe takes from the environment.
    """
    values = [(name, value.strip()) for name, value in withheld if len(value.strip()) >= MIN_LENGTH]
    patterns = [(name, _pattern(value)) for name, value in values]
    for text in _texts(question):
        if head := _DATA.match(text):
            data = _decoded(text[head.end() :])
            found = (name for name, value in values if len(value) >= _WHOLE_WORDS and value.encode() in data)
        else:
            found = (name for name, pattern in patterns if text not in _PROTOCOL and pattern.search(text))
        if name := next(found, "that holds a key" if not head and is_key(text) else ""):
            return name
    return ""


def _pattern(value: str) -> re.Pattern[str]:
    """The value in any of its spellings."""
    if len(value) < _WHOLE_WORDS:
        return re.compile(rf"(?<!\w){re.escape(value)}(?!\w)", re.IGNORECASE)
    spelled = {form for form in forms(value) if len(form) >= _WHOLE_WORDS}
    return re.compile("|".join(map(re.escape, sorted(spelled, key=len, reverse=True))), re.IGNORECASE)


def _texts(question: Json) -> Iterator[str]:
    """Every text of a request but the names of its parts."""
    if isinstance(question, dict):
        for value in question.values():
            yield from _texts(value)
    elif isinstance(question, list | tuple):
        for value in question:
            yield from _texts(value)
    elif isinstance(question, str):
        yield question


def _decoded(data: str) -> bytes:
    """The bytes of a picture or a video."""
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return data.encode(errors="replace")
