"""Shows what a bench measured: the figures of a step, what its time goes to, and the largest operations."""

from collections.abc import Iterator

from nemo_vfm.report.parts.media import SectionMedia
from nemo_vfm.report.parts.plain_text import as_mapping, as_sequence, clean, exact, figure, number, words
from nemo_vfm.report.parts.run_values import RunFolder
from nemo_vfm.report.parts.section import Card, Section, fragment

ORDER = 1
MAX_ROWS = 20
_BODY = """
{% if kinds %}
<div class="scroll"><table class="counts">
<thead><tr><th scope="col">kind</th><th scope="col" class="n">seconds a step</th>
<th scope="col" class="n">share</th></tr></thead>
<tbody>
{% for name, seconds, share in kinds %}
<tr><th scope="row">{{ name }}</th><td class="n">{{ seconds }}</td><td class="n">{{ share }}</td></tr>
{% endfor %}
</tbody></table></div>
<div class="scroll"><table class="counts">
<thead><tr><th scope="col">operation or kernel</th><th scope="col">kind</th>
<th scope="col" class="n">seconds a step</th><th scope="col" class="n">share</th></tr></thead>
<tbody>
{% for name, kind, seconds, share in largest %}
<tr><th scope="row">{{ name }}</th><td>{{ kind }}</td>
<td class="n">{{ seconds }}</td><td class="n">{{ share }}</td></tr>
{% endfor %}
</tbody></table></div>
{% endif %}
<div class="scroll"><table><tbody>
{% for name, value in rows %}
<tr><th scope="row">{{ name }}</th><td class="n">{{ value }}</td></tr>
{% endfor %}
</tbody></table></div>
"""


def sections(run: RunFolder, media: SectionMedia) -> Iterator[Section]:
    """One section where there is a bench."""
    for step in run.steps_with("bench.json"):
        said = as_mapping(run.read_json(step.folder / "bench.json"))
        step_s = number(said.get("step_s")) or 0.0

        def row(name: object, seconds: float, step_s: float = step_s) -> tuple[str, str, str]:
            return clean(str(name), 120), figure(seconds), f"{seconds / step_s:.1%}" if step_s else "–"

        kinds = [
            row(str(name).replace("_", " "), took)
            for name, value in as_mapping(said.get("kinds_s")).items()
            if (took := number(value)) is not None
        ]
        largest = []
        for each in map(as_mapping, as_sequence(said.get("largest"))[:MAX_ROWS]):
            name, seconds, share = row(each.get("name", ""), number(each.get("s")) or 0.0)
            largest.append((name, clean(str(each.get("kind", "")), 40).replace("_", " "), seconds, share))
        parts = as_mapping(said.get("start_parts_s"))
        figures = {
            "samples a second": said.get("samples_per_s"), "tokens a second": said.get("tokens_per_s"),
            "MFU": said.get("mfu"), "with repeated arithmetic": said.get("hfu"),
            "peak bytes of tensors": said.get("peak_bytes"), "bytes that plan says": said.get("planned_bytes"),
            **{f"seconds of start: {name}": value for name, value in parts.items()},
        }  # fmt: skip
        rows = [
            (clean(name, 60), exact(found) if "bytes" in name else figure(found))
            for name, value in figures.items()
            if (found := number(value)) is not None
        ]
        over, device = (clean(str(said.get(name) or "nothing"), 120) for name in ("peak", "device"))
        lead = (
            f"Medians of {exact(number(said.get('steps')))} steps on {exact(number(said.get('devices')))} x {device}. "
            f"MFU is over {over}."
        )
        cards = (Card(words("seconds_a_step"), figure(step_s)),)
        yield Section(
            "Bench", fragment(_BODY, {"kinds": kinds, "largest": largest, "rows": rows}), lead, step.name, cards
        )
