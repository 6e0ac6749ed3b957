"""Lists the figures of a test, a validation or a prediction of a Lightning module."""

from collections.abc import Iterator
from pathlib import Path

from nemo_vfm.report.parts.media import SectionMedia
from nemo_vfm.report.parts.plain_text import as_mapping, clean, figure, number, words
from nemo_vfm.report.parts.run_values import RunFolder
from nemo_vfm.report.parts.section import Card, Section, fragment

ORDER = 7
MAX_CARDS = 4
TITLES = {"test": "Test", "validate": "Validation", "predict": "Predictions"}
_TABLE = """
<div class="scroll"><table><tbody>
{% for name, value in rows %}
<tr><th scope="row">{{ name }}</th><td class="n">{{ value }}</td></tr>
{% endfor %}
</tbody></table></div>
"""


def sections(run: RunFolder, media: SectionMedia) -> Iterator[Section]:
    """One section a step."""
    for step in run.steps_with("figures.json"):
        said = as_mapping(run.read_json(step.folder / "figures.json"))
        figures = [(clean(name, 80), number(value)) for name, value in as_mapping(said.get("figures")).items()]
        rows = [(name, figure(value)) for name, value in figures if value is not None]
        cards = tuple(Card(words(name), value) for name, value in rows[:MAX_CARDS])
        title = TITLES.get(str(said.get("kind")), "Evaluation")
        lead = f"Weights: {Path(clean(said.get('weights', ''), 200)).name}."
        body = fragment(_TABLE, {"rows": rows or [("nothing was logged", "")]})
        yield Section(title, body, lead, step.name, cards)
