"""Defines report sections and the one template environment, which escapes every value."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from nemo_vfm.report.parts.plain_text import clean, exact, figure, one_line, span, words

_MACROS = """
{% macro medium(item, alt, class="") %}
{% if item is none %}
<span class="absent {{ class }}" role="img" aria-label="no picture: {{ alt }}">no picture</span>
{% elif item.kind == "video" %}
<video class="{{ class }}" src="{{ item.uri }}"
{%- if item.poster %} poster="{{ item.poster }}"{% endif %}
 autoplay muted loop playsinline aria-label="{{ alt }}"></video>
{% else %}
<img class="{{ class }}" src="{{ item.uri }}" alt="{{ alt }}">
{% endif %}
{% endmacro %}
"""
_TABLE = re.compile(r"<table\b.*?</table>", re.DOTALL)
_HEADING = re.compile(r"<th\b[^>]*>(.*?)</th>", re.DOTALL)
_CELL = re.compile(r"<t([hd])\b")
_TAG = re.compile(r"<[^>]*>")


@dataclass(frozen=True, slots=True)
class Card:
    """One headline figure on top of the page."""

    label: str  #: a few words
    value: str
    note: str = ""  #: what to compare it with


@dataclass(frozen=True, slots=True)
class Section:
    """One part of the page."""

    title: str
    body: Markup  #: its HTML, from `fragment`
    lead: str = ""  #: a sentence under the heading: what is shown and how to read it
    step: str = ""  #: name of the step that it reports on, shown above the heading
    cards: tuple[Card, ...] = ()  #: headline figures, which the page shows on top
    notes: tuple[str, ...] = ()  #: what could not be read or was left out
    folded: bool = False  #: shown collapsed, below the other sections


ENVIRONMENT = Environment(
    autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
    # None becomes nothing, marked HTML stays as it is, anything else becomes clean short text.
    finalize=lambda value: "" if value is None else value if hasattr(value, "__html__") else clean(str(value)),
)  # fmt: skip
ENVIRONMENT.filters.update(figure=figure, exact=exact, span=span, words=words, plain=one_line, clean=clean)


def fragment(template: str, values: Mapping[str, Any]) -> Markup:
    """Render a piece of the page. `medium(item, alt, class)` is available for pictures and videos."""
    return Markup(with_data_labels(_compile_template(template).render(values).strip()))  # noqa: S704


@cache
def _compile_template(template: str) -> Template:
    """Cached: compiling takes a hundred times as long as rendering, and a page renders a few templates many times."""
    return ENVIRONMENT.from_string(_MACROS + template)


def with_data_labels(html: str) -> str:
    """The same HTML; in tables with a `thead`, each `td` has its column's heading as `data-label`.

    `page.css` shows it where tables stack on narrow screens.
    """

    def label_cells(table: re.Match[str]) -> str:
        head, mark, body = table[0].partition("<tbody>")
        names = [_TAG.sub("", heading) for heading in _HEADING.findall(head)]
        parts = [head + mark]
        for row in re.split(r"(?=<tr\b)", body):
            columns = iter(names)

            def cell(tag: re.Match[str], columns: Iterator[str] = columns) -> str:
                name = next(columns, "")
                return f'<td data-label="{name}"' if name and tag[1] == "d" else tag[0]

            parts.append(_CELL.sub(cell, row))
        return "".join(parts)

    return _TABLE.sub(label_cells, html)
