"""Tabulates the linears in FP8: the range of their operands, what quantisation lost, and which of them were named."""

from collections.abc import Iterator, Mapping
from typing import Any

from nemo_vfm.report.parts.media import Media
from nemo_vfm.report.parts.plain_text import clean, exact, figure, listing, mapping, number
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


def sections(run: RunFolder, media: Media) -> Iterator[Section]:
    """One section a step that watched its linears; folded where none was named."""
    for step in run.having("fp8.jsonl"):
        looks = run.read_lines(step.folder / "fp8.jsonl")
        layers = mapping(looks[-1].get("layers")) if looks else {}
        if not layers:
            continue
        problems = [
            {
                "step": exact(number(look.get("step"))),
                "layer": clean(str(mapping(one).get("layer")), 80),
                "problem": clean(str(mapping(one).get("problem")), 120)
                + ("; now computed in BF16" if mapping(one).get("to_bf16") else ""),
            }
            for look in looks
            for one in listing(look.get("problems"))
        ]
        shown = _rows(layers, mapping(looks[-1].get("ages")), {row["layer"] for row in problems})
        if len(layers) > len(shown):
            run.note(f"Only {len(shown)} of {len(layers):,} FP8 layers are shown: those that lose most.")
        lead = (
            f"{exact(len(layers))} linear layers compute in FP8; values are from step "
            f"{exact(number(looks[-1].get('step')))}. The outlier is the input's largest channel over its "
            f"median channel. Shares are those of the worst operand."
        )
        values = {"roles": _ROLES, "layers": shown, "problems": problems[:MAX_PROBLEMS]}
        yield Section("FP8", fragment(_BODY, values), lead, step.name, folded=not problems)


def _rows(layers: Mapping[str, Any], ages: Mapping[str, Any], named: set[str]) -> list[dict[str, Any]]:
    """Those that were named first, then those that lose most."""
    losses = {name: (_share(found, "saturated"), _share(found, "flushed")) for name, found in layers.items()}
    order = sorted(layers, key=lambda name: (name not in named, -sum(losses[name])))[:MAX_LAYERS]
    return [
        {
            "name": clean(name, 80),
            "amax": [figure(number(mapping(mapping(layers[name]).get(role)).get("amax"))) for role in _ROLES],
            "outlier": figure(number(mapping(mapping(layers[name]).get("input")).get("outlier"))),
            "saturated": _percent(losses[name][0]),
            "flushed": _percent(losses[name][1]),
            "age": exact(max((number(age) or 0.0 for age in listing(ages.get(name))), default=0.0)) if ages else "–",
        }
        for name in order
    ]


def _share(operands: Any, what: str) -> float:
    """Of the worst operand."""
    counts = [mapping(mapping(operands).get(role)) for role in _ROLES]
    return max((number(one.get(what)) or 0.0) / max(number(one.get("values")) or 1.0, 1.0) for one in counts)


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share else "0"
