"""Shows how the run was made: times, versions and the recipe."""

import re
from collections.abc import Iterator

from markupsafe import Markup, escape

from nemo_vfm.core.types.job import MANIFEST, RECIPE
from nemo_vfm.report.parts.head import step_seconds
from nemo_vfm.report.parts.media import SectionMedia
from nemo_vfm.report.parts.plain_text import as_mapping, clean, one_line, span
from nemo_vfm.report.parts.run_values import RunFolder
from nemo_vfm.report.parts.section import Card, Section, fragment

ORDER = 90
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


def sections(run: RunFolder, media: SectionMedia) -> Iterator[Section]:
    """One section, where any of the three files is there."""
    seconds = step_seconds(run)
    recipe = run.read_text(RECIPE)
    manifest: list[tuple[str, str]] = []  # a row a value, one level of mappings opened
    for key, value in as_mapping(run.read_json(run.root / MANIFEST)).items():
        opened = [(f"{key} · {name}", one_line(item)) for name, item in as_mapping(value).items()]
        manifest += opened or [(str(key), one_line(value))]
    if not (seconds or recipe or manifest):
        return
    percent, start, rows = 100 / (sum(seconds.values()) or 1.0), 0.0, []
    for name, length in seconds.items():
        place = f"margin-left:{start * percent:.2f}%;width:{length * percent:.2f}%"
        rows.append((name or "run", span(length), place))
        start += length
    lines = []
    for line in clean(recipe, MAX_RECIPE_CHARS).splitlines():
        found = re.match(r"(\s*(?:- )*)([^\s#:'\"]+)(:)(?=\s|$)", line)
        if line.lstrip().startswith("#"):
            lines.append(Markup('<span class="comment">{}</span>').format(line))
        elif found is None:
            lines.append(escape(line))
        else:
            marked = Markup('{}<span class="yaml-key">{}</span>{}{}')
            lines.append(marked.format(found[1], found[2], found[3], line[found.end() :]))
    values = {"times": rows, "recipe": Markup("\n").join(lines), "manifest": manifest[:200]}
    cards = (Card("total time", span(sum(seconds.values())), f"{len(seconds)} steps"),) if len(seconds) > 1 else ()
    yield Section("Provenance", fragment(_BODY, values), cards=cards, folded=True)
