"""Formats values of any kind as short clean text: no control characters, bounded length, units spelled out."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

MAX_CHARS = 600

# Control characters, marks that turn the reading direction, surrogates that no file can hold. Tab and newline stay.
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff\ufffe\uffff]"
)


def clean(text: str, max_chars: int = MAX_CHARS) -> str:
    """The same text, printable, cut at `max_chars` with a word on how long it was."""
    cut = text[:max_chars].replace("\r\n", "\n")
    tail = f"… (cut, {len(text):,} characters)" if len(text) > max_chars else ""
    return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", cut) + tail


def number(value: Any) -> float | None:
    """A finite float, or None for anything else: text, true, NaN, a number beyond float's range."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        as_float = float(value)
    except OverflowError:
        return None
    return as_float if math.isfinite(as_float) else None


def as_mapping(value: Any) -> Mapping[str, Any]:
    """The value where it is a mapping, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def as_sequence(value: Any) -> Sequence[Any]:
    """The value where it is a list, else an empty one."""
    return value if isinstance(value, list) else []


def figure(value: float | None) -> str:
    """A number as it is read best: thousands grouped, three significant digits below a hundred."""
    if value is None:
        return "–"
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    if abs(value) >= 1e6 or abs(value) < 1e-3:
        return f"{value:.2e}".replace("e-0", "e-").replace("e+0", "e")
    return f"{value:,.1f}" if abs(value) >= 100 else f"{value:.3g}"


def exact(value: float | None) -> str:
    """A number for a table that has to add up: grouped, at most two decimals."""
    return "–" if value is None else f"{value:,.2f}".rstrip("0").rstrip(".")


def span(seconds: float | None) -> str:
    """A length of time: 0.8 s, 42 s, 3 min 12 s, 5 h 07 min."""
    if seconds is None:
        return "–"
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def words(name: str) -> str:
    """A key as a reader would write it: `colour_accuracy` becomes `colour accuracy`, `duration_s` `duration (s)`."""
    return re.sub(r"(?<!_per)_(s|px|fps|gb|db|deg)$", r" (\1)", name).replace("_", " ").strip()


def one_line(value: Any) -> str:
    """Any JSON value on one line."""
    if isinstance(value, Mapping):
        return ", ".join(f"{words(str(key))} {one_line(item)}" for key, item in list(value.items())[:40])
    if isinstance(value, list):
        return ", ".join(one_line(item) for item in value[:40])
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return figure(number(value)) if isinstance(value, float) else clean(str(value))
