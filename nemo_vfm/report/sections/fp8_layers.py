"""Tabulates the linears in FP8: the range of their operands, what quantisation lost, and which of them were named."""

from collections.abc import Iterator
from typing import Any

from nemo_vfm.report.parts.media import SectionMedia
from nemo_vfm.report.parts.plain_text import as_mapping, as_sequence, clean, exact, figure, number
from nemo_vfm.report.parts.run_values import RunFolder
from nemo_vfm.report.parts.section import Section, fragment

ORDER = 8
MAX_LAYERS, MAX_PROBLEMS = 16, 24
_ROLES = ("input", "weight", "gradient")
_BODY = """
{% if problems %}
<div class="scroll"><table class="counts">
<thead><tr><th scope="col">layer</th><th scope="col">problem</th><th scope="col" class="n">step</th></tr></thead>
<tbody>
{% for row in problems %}
<tr><th scope="row">{{ row.layer }}</th><td>{{ row.problem }}</td><td class="n">{{ row.step }}</td></tr>
{% endfor %}
</tbody></table></div>
{% endif %}
<div class="scroll"><table class="counts">
<thead><tr><th scope="col">layer</th>
{% for role in roles %}<th scope="col" class="n">amax of {{ role }}</th>{% endfor %}
<th scope="col" class="n">outlier</th><th scope="col" class="n">saturated</th><th scope="col" class="n">to zero</th>
<th scope="col" class="n">scale age</th></tr></thead>
<tbody>
{% for row in layers %}
<tr><th scope="row">{{ row.name }}</th>
{% for amax in row.amax %}<td class="n">{{ amax }}</td>{% endfor %}
<td class="n">{{ row.outlier }}</td><td class="n">{{ row.saturated }}</td><td class="n">{{ row.flushed }}</td>
<td class="n">{{ row.age }}</td></tr>
{% endfor %}
</tbody></table></div>
"""


def sections(run: RunFolder, media: SectionMedia) -> Iterator[Section]:
    """One section a step that watched its linears; folded where none was named."""
    for step in run.steps_with("fp8.jsonl"):
        looks = run.read_lines(step.folder / "fp8.jsonl")
        layers = as_mapping(looks[-1].get("layers")) if looks else {}
        if not layers:
            continue
        problems = []
        for look in looks:
            for one in map(as_mapping, as_sequence(look.get("problems"))):
                now = "; now computed in BF16" if one.get("to_bf16") else ""
                problems.append({"step": exact(number(look.get("step"))), "layer": clean(str(one.get("layer")), 80),
                                 "problem": clean(str(one.get("problem")), 120) + now})  # fmt: skip
        # Those that were named first, then those that lose most.
        named, ages, shown = {row["layer"] for row in problems}, as_mapping(looks[-1].get("ages")), []
        losses = {name: (_share(found, "saturated"), _share(found, "flushed")) for name, found in layers.items()}
        for name in sorted(layers, key=lambda name: (name not in named, -sum(losses[name])))[:MAX_LAYERS]:
            operands = {role: as_mapping(as_mapping(layers[name]).get(role)) for role in _ROLES}
            age = max((number(age) or 0.0 for age in as_sequence(ages.get(name))), default=0.0)
            shown.append({
                "name": clean(name, 80), "amax": [figure(number(one.get("amax"))) for one in operands.values()],
                "outlier": figure(number(operands["input"].get("outlier"))),
                "saturated": _percent(losses[name][0]), "flushed": _percent(losses[name][1]),
                "age": exact(age) if ages else "–",
            })  # fmt: skip
        if len(layers) > len(shown):
            run.note(f"Only {len(shown)} of {len(layers):,} FP8 layers are shown: those that lose most.")
        lead = (
            f"{exact(len(layers))} linear layers compute in FP8; values are from step "
            f"{exact(number(looks[-1].get('step')))}. The outlier is the input's largest channel over its "
            f"median channel. Shares are those of the worst operand."
        )
        values = {"roles": _ROLES, "layers": shown, "problems": problems[:MAX_PROBLEMS]}
        yield Section("FP8", fragment(_BODY, values), lead, step.name, folded=not problems)


def _share(operands: Any, what: str) -> float:
    """Of the worst operand."""
    counts = [as_mapping(as_mapping(operands).get(role)) for role in _ROLES]
    return max((number(one.get(what)) or 0.0) / max(number(one.get("values")) or 1.0, 1.0) for one in counts)


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share else "0"
