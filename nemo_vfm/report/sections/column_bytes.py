"""Tabulates how many bytes each column of a feature table takes on disk, the largest first."""

from collections.abc import Iterator
from typing import NamedTuple

from nemo_vfm.report.parts.media import SectionMedia
from nemo_vfm.report.parts.plain_text import as_mapping, clean, exact, figure, number
from nemo_vfm.report.parts.run_values import RunFolder
from nemo_vfm.report.parts.section import Card, Section, fragment

ORDER = 13
MAX_COLUMNS = 20
_BODY = """
<div class="scroll"><table class="counts">
<thead><tr><th scope="col">column</th><th scope="col">file</th><th scope="col" class="n">values</th>
<th scope="col" class="n">stored</th><th scope="col" class="n">{{ unit }}</th><th scope="col" class="n">share</th>
<th scope="col"><span class="hidden">share</span></th></tr></thead>
<tbody>
{% for row in rows %}
<tr><th scope="row">{{ row.name }}</th><td class="file">{{ row.file }}</td><td class="n">{{ row.plain }}</td>
<td class="n">{{ row.stored }}</td><td class="n">{{ row.size }}</td><td class="n">{{ row.share }}</td>
<td class="wide"><span class="track"><span class="bar tone-a" style="width:{{ row.width }}%"></span></span></td></tr>
{% endfor %}
</tbody></table></div>
"""
_UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "bytes"))


class _Column(NamedTuple):
    name: str
    file: str
    bytes: float
    plain: float | None = None
    stored: float | None = None


def sections(run: RunFolder, media: SectionMedia) -> Iterator[Section]:
    """One section a step that wrote a feature table."""
    for step, manifest in run.each("table/manifest.json"):
        columns, values = list[_Column](), as_mapping(manifest.get("values"))
        for group, sizes in as_mapping(manifest.get("column_bytes")).items():
            file = f"group {clean(group, 40)}" if group else "samples"
            for name, num_bytes in as_mapping(sizes).items():
                known = as_mapping(values.get(name.removeprefix("feature/"))) if name.startswith("feature/") else {}
                plain, stored = number(known.get("plain")), number(known.get("stored"))
                columns.append(_Column(clean(name, 60), file, max(number(num_bytes) or 0.0, 0.0), plain, stored))
        columns.sort(key=lambda column: -column.bytes)
        if total := sum(column.bytes for column in columns):
            scale, unit = _unit(columns[0].bytes)
            shown = columns
            if len(columns) > MAX_COLUMNS + 1:  # the largest ones, and one row for the others together
                others = columns[MAX_COLUMNS:]
                rest = _Column(f"{len(others)} others", "", sum(column.bytes for column in others))
                shown = [*columns[:MAX_COLUMNS], rest]
            rows = []
            for column in shown:
                share = 100 * column.bytes / total
                counts = ["" if count is None else exact(count) for count in (column.plain, column.stored)]
                rows.append({
                    "name": column.name, "file": column.file, "size": figure(column.bytes / scale),
                    "share": f"{share:.1f} %", "width": f"{share:.1f}", "plain": counts[0], "stored": counts[1],
                })  # fmt: skip
            size = f"{figure(total / _unit(total)[0])} {_unit(total)[1]}"
            lead = (
                f"{exact(number(manifest.get('rows')))} samples in {size}, compressed. Grouped features store "
                "values that repeat in a session once."
            )
            cards = (Card("feature table", size, f"{len(columns)} columns"),)
            yield Section("Bytes by column", fragment(_BODY, {"rows": rows, "unit": unit}), lead, step.name, cards)


def _unit(size: float) -> tuple[float, str]:
    return next((scale, unit) for scale, unit in _UNITS if size >= scale)
