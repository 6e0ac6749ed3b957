"""Shows what judges said of rows that a synthesis made, by source, and what asking the models came to."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from nemo_vfm.report.parts.media import SectionMedia
from nemo_vfm.report.parts.plain_text import as_mapping, clean, exact, figure, number, words
from nemo_vfm.report.parts.run_values import RunFolder
from nemo_vfm.report.parts.section import Card, Section, fragment

ORDER = 5
MAX_SOURCES, MAX_SCORES = 12, 8
_SOURCES = ("source", "topic", "operator", "category")  # the first that a row's parents have is its source
_TABLE = """
<div class="scroll"><table><thead><tr>
{% for name in head %}<th scope="col">{{ name }}</th>{% endfor %}
</tr></thead><tbody>
{% for row in rows %}<tr>{% for cell in row %}{% if loop.first %}<th scope="row">{{ cell }}</th>
{% else %}<td>{{ cell }}</td>{% endif %}{% endfor %}</tr>
{% endfor %}</tbody></table></div>
"""


def sections(run: RunFolder, media: SectionMedia) -> Iterator[Section]:
    """Up to three sections a step that made rows."""
    for step in run.steps_with("rows.jsonl"):
        rows = run.read_lines(step.folder / "rows.jsonl")
        if any(as_mapping(row.get("scores")) for row in rows):
            lead = "The mean of each score by source."
            yield Section("Scores by source", _scores(rows), lead, step.name)
        if any("chosen_by" in as_mapping(row.get("parents")) for row in rows):
            lead = "How often each model's answer was preferred, and who decided."
            parents = [as_mapping(row.get("parents")) for row in rows]
            won, lost, by = (
                Counter(clean(str(one.get(name)), 80) for one in parents)
                for name in ("chosen_by", "rejected_by", "decided_by")
            )
            table = [[role, exact(won[role]), exact(lost[role]), f"{won[role] / (won[role] + lost[role]):.0%}"]
                     for role in sorted(won | lost)]  # fmt: skip
            deciders = [[name, exact(count)] for name, count in by.most_common()]
            body = fragment(_TABLE, {"head": ["model", "better", "worse", "share better"], "rows": table})
            body += fragment(_TABLE, {"head": ["decided by", "rows"], "rows": deciders})
            yield Section("Preferences", body, lead, step.name)
        uses = as_mapping(as_mapping(run.read_json(step.folder / "ledger.json")).get("uses"))
        if uses:
            names = ("asked", "recalled", "tokens_in", "tokens_out", "money")
            table = [[clean(role, 80), *(figure(number(as_mapping(use).get(name))) for name in names)]
                     for role, use in uses.items()]  # fmt: skip
            totals = {name: sum(number(as_mapping(use).get(name)) or 0.0 for use in uses.values()) for name in names}
            table.append(["all", *(figure(totals[name]) for name in names)])
            head = ["model", "answers requested", "cached", "input tokens", "output tokens", "money"]
            lead = "Tokens and cost of all answers, including cached ones, in the currency of the budget's prices."
            tokens = totals["tokens_in"] + totals["tokens_out"]
            cards = [Card("tokens", figure(tokens), f"{figure(round(tokens / len(rows)))} a row" if rows else "")]
            if money := totals["money"]:
                cards.append(Card("money", figure(money), f"{figure(money / max(1, len(rows)))} a row"))
            body = fragment(_TABLE, {"head": head, "rows": table})
            yield Section("Cost of the answers", body, lead, step.name, tuple(cards))


def _scores(rows: Sequence[Mapping[str, Any]]) -> Any:
    sources: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        for name, score in as_mapping(row.get("scores")).items():
            if (value := number(score)) is not None:
                parents = as_mapping(row.get("parents"))
                named = (clean(str(parents[key]), 80) for key in _SOURCES if parents.get(key))
                for source in ("all rows", next(named, "no source named")):
                    sources[source][str(name)].append(value)
    names = list(sources["all rows"])[:MAX_SCORES]
    largest = sorted(sources, key=lambda source: -max(map(len, sources[source].values())))[: MAX_SOURCES + 1]
    table = []
    for source in largest:
        scores = sources[source]
        means = [f"{fmean(scores[name]):.2f}" if scores.get(name) else "–" for name in names]
        table.append([source, exact(max(map(len, scores.values()))), *means])
    return fragment(_TABLE, {"head": ["source", "rows", *map(words, names)], "rows": table})
