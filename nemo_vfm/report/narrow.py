"""Labels each cell of a table with its column's name, which a phone shows where rows are stacked."""

import re

_TABLE = re.compile(r"<table\b.*?</table>", re.DOTALL)
_HEADING = re.compile(r"<th\b[^>]*>(.*?)</th>", re.DOTALL)
_ROW = re.compile(r"<tr\b.*?</tr>", re.DOTALL)
_CELL = re.compile(r"<t([hd])\b")
_TAG = re.compile(r"<[^>]*>")


def with_labels(html: str) -> str:
    """The same HTML; in tables with a `thead`, each `td` has its column's heading as `data-label`."""
    return _TABLE.sub(lambda table: _labelled(table[0]), html)


def _labelled(table: str) -> str:
    head, mark, body = table.partition("<tbody>")
    names = [_TAG.sub("", heading) for heading in _HEADING.findall(head)]
    return head + mark + _ROW.sub(lambda row: _labelled_row(row[0], names), body)


def _labelled_row(row: str, names: list[str]) -> str:
    columns = iter(names)

    def cell(tag: re.Match[str]) -> str:
        name = next(columns, "")
        return f'<td data-label="{name}"' if name and tag[1] == "d" else tag[0]

    return _CELL.sub(cell, row)
