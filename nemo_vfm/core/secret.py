"""Replaces secrets in texts with `***`: values that came from `${env:X}`, and keys found in the environment.

A secret is hidden both as it is and in its encoded forms: inside URLs, JSON, HTML and base64. Texts shorter than six
characters, everyday words, plain numbers and existing folders are not secrets. A page in which every `1` or `/data` is
`***` would be useless. docs/how-to/training/logging.md says what this cannot see.
"""

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import cache
from typing import TextIO, cast

from nemo_vfm.core.sanitize import strip_controls

MASK = "***"
MIN_LENGTH = 6
_KEYS = r"(?:API|ACCESS|PRIVATE|SIGNING|ENCRYPTION)?KEYS?|(?:AUTH|ACCESS|API)?TOKENS?"
#: A variable is secret by its name where one of the words between its underscores says so.
_SECRET_NAME = re.compile(
    rf"(?:^|_)(?:{_KEYS}|SECRETS?|PASS|PASSW(?:OR)?D|PASSPHRASE|CREDENTIALS?|DSN|PAT|COOKIE)(?:_|$)", re.IGNORECASE
)
#: An argument that is secret by its name; `text_key` and `max_tokens` are not.
_KEY_ARGUMENT = re.compile(
    r"(?:api|access|private|secret)_?key|passw(?:or)?d|secret|credential|(?:^|[._])(?:\w+_)?token$", re.IGNORECASE
)
#: What `api_key_env=` holds where it holds what it should: a name, which the complaint that it is not set must say.
_VARIABLE = re.compile(r"[A-Z]+(?:_[A-Z0-9]{1,16}){1,5}")
_EVERYDAY = frozenset((
    "changeme", "default", "develop", "disable", "disabled", "enable", "enabled", "latest", "localhost", "master",
    "nemo_vfm", "offline", "online", "password", "private", "production", "public", "release", "secret", "staging",
    "string", "testing", "undefined", "unknown",
))  # fmt: skip
_known: set[str] = set()


def register(value: str) -> None:
    """Hide this value from now on: a recipe took it from the environment."""
    if _is_worth_hiding(value) and not _is_place(value):
        _known.add(value)


def key_of(variable: str) -> str:
    """The key that a variable of the environment holds now; it is hidden from now on.

    Raises:
        ValueError: it holds none, or something that is no key; the text does not repeat it.
    """
    key = os.environ.get(variable, "").strip()
    if not key or not key.isascii() or not key.isprintable():
        what = "is empty or not set" if not key else "contains characters that no key has"
        raise ValueError(f"the variable {variable}, which should hold the key, {what}")
    register(key)
    return key


def register_arguments(words: Sequence[str]) -> None:
    """Hide what somebody typed behind a name such as `api_key=`: the complaint about it must not repeat it."""
    for word in words:
        name, _, value = word.partition("=")
        if _KEY_ARGUMENT.search(name) and not (name.endswith("_env") and _VARIABLE.fullmatch(value)):
            register(value)


def is_key(text: str) -> bool:
    """Whether a text holds the value of a variable whose name says that it is secret."""
    return any(value in text for value in _secret_values())


def conceal(text: str) -> str:
    """The text without secrets."""
    return _without(text, _known | _secret_values())


def conceal_names(values: Mapping[str, float]) -> dict[str, float]:
    """The same numbers under names without secrets."""
    hidden = _known | _secret_values()
    return {_without(name, hidden): value for name, value in values.items()}


def conceal_keys(text: str) -> str:
    """The text without the values of variables whose names say that they are secret; for what is read back.

    What recipes take from the environment stays: in a recipe that was written to disk it stands as `${env:X}`, and the
    same word elsewhere in it is the user's own.
    """
    return _without(text, _secret_values())


@contextmanager
def concealing_streams() -> Iterator[None]:
    """Let nothing secret through to standard output and error: the last net, under those at every known place.

    Nor does standard output steer the terminal; on standard error the progress bars do.
    """
    with redirect_stdout(_stream(sys.stdout, strip_controls)), redirect_stderr(_stream(sys.stderr)):
        yield


class _Stream:
    """A text stream that conceals what is written; all else is the stream's own."""

    def __init__(self, stream: TextIO, clean: Callable[[str], str]) -> None:
        self._stream, self._clean = stream, clean

    def write(self, text: str) -> int:
        """Write the text without secrets; the length is that of what was given, as callers count on."""
        self._stream.write(self._clean(conceal(text)))
        return len(text)

    def writelines(self, lines: list[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)


def _without(text: str, values: set[str]) -> str:
    for form in _all_forms(frozenset(values)):
        text = text.replace(form, MASK)
    return text


def _stream(stream: TextIO, clean: Callable[[str], str] = str) -> TextIO:
    return stream if isinstance(stream, _Stream) else cast(TextIO, _Stream(stream, clean))


def _secret_values() -> set[str]:
    """Values of variables that are secret by their name, as the environment is now."""
    found = (value for name, value in os.environ.items() if is_secret_name(name))
    return {value for value in found if _is_worth_hiding(value) and not _is_place(value)}


@cache
def is_secret_name(name: str) -> bool:
    """Whether a variable of this name holds a secret."""
    return _SECRET_NAME.search(name) is not None


def _is_worth_hiding(value: str) -> bool:
    text = value.strip()
    number = re.fullmatch(r"[\d.,:+-]{1,11}", text)  # a port, a job's number, a time
    return len(text) >= MIN_LENGTH and text.lower() not in _EVERYDAY and number is None


@cache
def _is_place(value: str) -> bool:
    """Whether a value is a folder or a file: `/data/x` where there is a `/data`. Some keys begin with a slash too."""
    parts = value.split("/")
    if len(value) > 1000 or "\n" in value or "\0" in value or not value.startswith("/"):
        return False
    return os.path.exists(value) or (len(parts) > 2 and os.path.isdir(f"/{parts[1]}"))  # noqa: PTH110, PTH112 (text)


@cache
def _all_forms(values: frozenset[str]) -> tuple[str, ...]:
    """Everything to look for, the longest first: a secret may hold another. One by one is faster than one pattern."""
    found = {form for value in values for form in forms(value) if len(form) >= MIN_LENGTH}
    return tuple(sorted(found, key=lambda form: (-len(form), form)))


def forms(value: str) -> Iterator[str]:
    """A secret and its disguises; of one with several lines each line, since indentation comes between them."""
    import base64

    text = value.strip()
    yield from _spellings(text)
    data = text.encode(errors="surrogateescape")
    # base64 of the bytes wherever they stand in what was encoded, such as behind `user:`; ends that mix are cut.
    for offset in range(3) if len(data) >= 8 else ():
        encoded = base64.b64encode(bytes(offset) + data).decode().rstrip("=")
        stable = encoded[-(-offset * 8 // 6) : (offset + len(data)) * 8 // 6]
        yield from (stable, stable.replace("+", "-").replace("/", "_"))
    for line in text.splitlines() if "\n" in text else ():
        if _is_worth_hiding(line):
            yield from _spellings(line.strip())


def _spellings(text: str) -> Iterator[str]:
    """A text as URLs, JSON, JSON inside JSON, HTML and `repr` write it."""
    import json
    from html import escape
    from urllib.parse import quote, quote_plus

    plain = text.encode(errors="replace").decode()  # a variable may hold bytes that are no text
    quoted = (quote(plain, safe=""), quote(plain), quote_plus(plain))
    once = json.dumps(text)[1:-1]
    yield from (text, once, json.dumps(text, ensure_ascii=False)[1:-1], json.dumps(once)[1:-1], repr(text)[1:-1])
    yield from (*quoted, *(re.sub("%..", lambda match: match[0].lower(), form) for form in quoted))
    yield from (escape(text), escape(text, quote=False))
