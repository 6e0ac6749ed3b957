"""Shows how the run was made: times, versions and the recipe."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from markupsafe import Markup, escape

from nemo_vfm.report.parts.head import step_seconds
from nemo_vfm.report.parts.media import Media
from nemo_vfm.report.parts.plain_text import clean, mapping, plain, span
from nemo_vfm.report.parts.run_values import RunFolder
from nemo_vfm.report.parts.section import Card, Section, fragment

ORDER = 90
BUDGET_MB = 0.0
MAX_RECIPE_CHARS = 200_000

_BODY = """
{% if times %}
<div class="scroll"><table class="counts">
<thead><tr><th scope="col">step</th><th scope="col" class="n">time</th><th scope="col"></th></tr></thead>
<tbody>
{% for name, time, place in times %}
<tr><th scope="row">{{ name }}</th><td class="n">{{ time }}</td>
<td class="wide"><span class="track"><span class="bar tone-kept" style="{{ place }}"></span></span></td></tr>
{% endfor %}
</tbody></table></div>
{% endif %}
{% if recipe %}
<details><summary>The composed recipe</summary><pre class="recipe"><code>{{ recipe }}</code></pre></details>
{% endif %}
{% if manifest %}
<details><summary>The manifest</summary><div class="scroll"><table class="manifest"><tbody>
{% for name, value in manifest %}
<tr><th scope="row">{{ name }}</th><td>{{ value }}</td></tr>
{% endfor %}
</tbody></table></div></details>
{% endif %}
"""


def sections(run: RunFolder, media: Media) -> Iterator[Section]:
    """One section, where any of the three files is there."""
    seconds = step_seconds(run)
    recipe = run.read_text("recipe.yaml")
    manifest = _flat(mapping(run.read_json(run.root / "manifest.json")))
    if not (seconds or recipe or manifest):
        return
    percent, start, rows = 100 / (sum(seconds.values()) or 1.0), 0.0, []
    for name, length in seconds.items():
        place = f"margin-left:{start * percent:.2f}%;width:{length * percent:.2f}%"
        rows.append((name or "run", span(length), place))
        start += length
    lines = [_line(line) for line in clean(recipe, MAX_RECIPE_CHARS).splitlines()]
    values = {"times": rows, "recipe": Markup("\n").join(lines), "manifest": manifest}
    cards = (Card("total time", span(sum(seconds.values())), f"{len(seconds)} steps"),) if len(seconds) > 1 else ()
    yield Section("How it was made", fragment(_BODY, values), cards=cards, folded=True)


def _flat(manifest: Mapping[str, Any]) -> list[tuple[str, str]]:
    """One row a value, one level of mappings opened."""
    rows: list[tuple[str, str]] = []
    for key, value in manifest.items():
        inner = mapping(value)
        opened = [(f"{key} · {name}", plain(item)) for name, item in inner.items()]
        rows += opened or [(str(key), plain(value))]
    return rows[:200]


def _line(line: str) -> Markup:
    key = re.match(r"(\s*(?:- )*)([^\s#:'\"]+)(:)(?=\s|$)", line)
    if line.lstrip().startswith("#"):
        return Markup('<span class="comment">{}</span>').format(line)
    if key is None:
        return escape(line)
    return Markup('{}<span class="yaml-key">{}</span>{}{}').format(key[1], key[2], key[3], line[key.end() :])
