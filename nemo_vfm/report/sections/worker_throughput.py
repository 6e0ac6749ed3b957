"""Tabulates the workers of each curation step, how busy they were, and what they processed."""

from collections.abc import Iterator, Mapping

from nemo_vfm.report.parts.media import SectionMedia
from nemo_vfm.report.parts.plain_text import as_sequence, exact, figure, number, span
from nemo_vfm.report.parts.run_values import RunFolder
from nemo_vfm.report.parts.section import Section, fragment

ORDER = 45
_TABLE = """
<div class="scroll"><table class="counts">
<thead><tr><th scope="col">step</th><th scope="col" class="n">workers</th><th scope="col" class="n">results</th>
<th scope="col" class="n">time</th><th scope="col" class="n">results/s</th>
<th scope="col" class="n">time per result</th><th scope="col">busy</th></tr></thead>
<tbody>
{% for row in rows %}
<tr><th scope="row">{{ row.name }}</th><td class="n">{{ row.workers }}</td><td class="n">{{ row.parts }}</td>
<td class="n">{{ row.took }}</td><td class="n">{{ row.rate }}</td><td class="n">{{ row.each }}</td>
<td class="wide"><span class="track"><span class="bar tone-kept" style="width:{{ row.busy }}%"></span></span></td></tr>
{% endfor %}
</tbody></table></div>
"""


def sections(run: RunFolder, media: SectionMedia) -> Iterator[Section]:
    """One section a step that says how its work went."""
    for step in run.steps_with("throughput.json"):
        rows = []
        for row in as_sequence(run.read_json(step.folder / "throughput.json")):
            if isinstance(row, Mapping):
                workers, parts, busy_s, wall_s = (number(row.get(key)) or 0.0
                                                  for key in ("workers", "parts", "busy_s", "wall_s"))  # fmt: skip
                share = busy_s / (workers * wall_s) if workers and wall_s else 0.0
                rows.append({
                    "name": str(row.get("step")), "workers": exact(workers), "parts": exact(parts),
                    "took": span(wall_s), "rate": figure(parts / wall_s) if wall_s else "–",
                    "each": span(busy_s / parts) if parts else "–", "busy": round(100 * min(max(share, 0.0), 1.0), 1),
                })  # fmt: skip
        if rows:
            lead = (
                "Work done in the last run; cached results are excluded. The bar is the share of time that workers "
                "were busy: the busiest step is the bottleneck."
            )
            yield Section("Throughput", fragment(_TABLE, {"rows": rows}), lead, step.name, folded=True)
