"""Shows the prompts of each sampling step beside the videos drawn for them, with their evaluation."""

from collections.abc import Iterator, Mapping
from typing import Any

from nemo_vfm.report.parts.media import SectionMedia
from nemo_vfm.report.parts.plain_text import as_mapping, as_sequence, clean, figure, number, one_line, words
from nemo_vfm.report.parts.run_values import RunFolder, RunStep
from nemo_vfm.report.parts.section import Card, Section, fragment

ORDER = 1
BUDGET_MB = 5.0
MAX_PROMPTS = 32
SHOWN_FIRST = 8
NOT_MEASURED = frozenset({"index", "prompt", "seed"})
UNTRAINED = frozenset({"baseline", "untrained"})
_BODY = """
{% if measures %}
<div class="scroll"><table class="measures">
<thead><tr><th scope="col">measured from pixels</th>
{% for name in columns %}
<th scope="col" class="n">{{ name }}</th>
{% endfor %}
</tr></thead>
<tbody>
{% for name, cells in measures %}
<tr><th scope="row">{{ name }}</th>
{% for cell in cells %}
<td class="n">{{ cell }}</td>
{% endfor %}
</tr>
{% endfor %}
</tbody></table></div>
{% endif %}
{% macro prompt(item) %}
<article class="prompt"><h3>{{ item.prompt }}</h3>
<div class="takes">
{% for take in item.takes %}
<figure>{{ medium(take.medium, take.label ~ " sample for: " ~ item.prompt, "take") }}
<figcaption><span class="who">{{ take.label }}</span>
{% for name, right in take.marks %}
<span class="mark {{ "right" if right else "wrong" }}">{{ "✓" if right else "✗" }} {{ name -}}
<span class="hidden">{{ " is right" if right else " is wrong" }}</span></span>
{% endfor %}
{% for name, value in take.facts %}
<span class="fact">{{ name }} {{ value }}</span>
{% endfor %}
</figcaption></figure>
{% endfor %}
</div>
{% if item.nearest %}
<figure class="nearest">{{ medium(item.nearest.medium, "Nearest training clip: " ~ item.nearest.caption, "strip") }}
<figcaption><span class="who">nearest training clip{{ item.nearest.distance }}</span>
<span class="caption">{{ item.nearest.caption }}</span></figcaption></figure>
{% endif %}
</article>
{% endmacro %}
<div class="prompts">
{% for item in prompts[:shown] %}
{{ prompt(item) }}
{% endfor %}
</div>
{% if prompts[shown:] %}
<details><summary>{{ prompts[shown:]|length }} more</summary>
<div class="prompts">
{% for item in prompts[shown:] %}
{{ prompt(item) }}
{% endfor %}
</div></details>
{% endif %}"""


def sections(run: RunFolder, media: SectionMedia) -> Iterator[Section]:
    """One section for all sampling steps together, so that they stand side by side."""
    columns = _columns(run)
    evaluation = next((value for _, value in run.each("evaluation.json")), {})
    if not columns and not evaluation:
        return
    indices = sorted({index for _, samples in columns.values() for index in samples})
    prompts = [_prompt(run, media, columns, evaluation, index) for index in indices[:MAX_PROMPTS]]
    for step in run.steps_with("nearest.json"):
        by_index = _by_index([as_mapping(item) for item in as_sequence(run.read_json(step.folder / "nearest.json"))])
        for prompt in prompts:
            if found := by_index.get(prompt["index"]):
                name = str(found.get("thumbnail") or "no-such-name")[:300].replace("\0", "")
                distance = number(found.get("distance"))
                prompt["nearest"] = {
                    "medium": media.embed(run.root / name),
                    "caption": clean(str(found.get("caption") or found.get("clip_id") or ""), 160),
                    "distance": f" · {figure(distance)}" if distance is not None else "",
                }
    if len(indices) > MAX_PROMPTS:
        run.note(f"The first {MAX_PROMPTS} of {len(indices)} prompts are shown.")
    names = ["trained", "untrained"] if as_mapping(evaluation.get("untrained")) else ["trained"]
    # Every number of the evaluation, beside the untrained model's where it has one.
    other = as_mapping(evaluation.get("untrained"))
    rows = []
    for key, value in evaluation.items():
        if number(value) is not None and not key.startswith("num_"):
            cells = [_measure_text(key, value, evaluation)] + (
                [_measure_text(key, other.get(key), evaluation)] if other else []
            )
            rows.append((words(clean(str(key), 60)), cells))
    values = {"columns": names, "measures": rows, "prompts": prompts, "shown": SHOWN_FIRST}
    lead = (
        "Each prompt with the model's sample. ✗ marks an error and names what was seen instead. Below: the most "
        "similar training clip and its distance (0 is a copy)."
    )
    steps = ", ".join(step.name for step, _ in columns.values() if step.name)
    yield Section("Samples", fragment(_BODY, values), lead, steps, _cards(evaluation))


def _columns(run: RunFolder) -> dict[str, tuple[RunStep, dict[int, Mapping[str, Any]]]]:
    """For each sampling step its label and its samples by index, the trained model first."""
    steps = sorted(run.steps_with("samples.json"), key=lambda step: step.name in UNTRAINED)
    lists = [as_sequence(run.read_json(step.folder / "samples.json")) for step in steps]
    compared = len(steps) == 2 and steps[-1].name in UNTRAINED
    columns = {}
    for step, items in zip(steps, lists, strict=True):
        label = "trained" if compared else words(step.name) or "sample"
        label = "untrained" if step.name in UNTRAINED else label
        columns[label] = step, _by_index([as_mapping(item) for item in items if as_mapping(item)])
    return columns


def _by_index(samples: list[Mapping[str, Any]]) -> dict[int, Mapping[str, Any]]:
    numbered = ((number(item.get("index")), place, item) for place, item in enumerate(samples))
    return {int(index) if index is not None else place: item for index, place, item in numbered}


def _prompt(
    run: RunFolder, media: SectionMedia, columns: Mapping[str, tuple[RunStep, Mapping[int, Mapping[str, Any]]]],
    evaluation: Mapping[str, Any], index: int,
) -> dict[str, Any]:  # fmt: skip
    takes, prompt = [], ""
    for label, (step, samples) in columns.items():
        if (sample := samples.get(index)) is None:
            continue
        prompt = prompt or clean(str(sample.get("prompt") or "(no prompt)"), 200)
        # What was measured of this sample: truths become marks, anything else stands as it is.
        part = as_mapping(evaluation.get("untrained")) if label == "untrained" else evaluation
        items = [as_mapping(item) for item in as_sequence(part.get("per_prompt"))]
        item = _by_index(items).get(index, {})
        verdicts = {
            str(key).removesuffix("_right").removesuffix("_correct"): value
            for key, value in item.items()
            if isinstance(value, bool)
        }
        marks = []  # what was judged and, where it is wrong, what was seen instead
        for what, right in verdicts.items():
            name, seen = words(clean(what, 40)), item.get(what)
            marks.append((name if right or not isinstance(seen, str) else f"{name}: {clean(seen, 40)}", right))
        rest = {key: value for key, value in item.items() if key not in verdicts and key not in NOT_MEASURED}
        facts = [(words(clean(str(k), 40)), clean(one_line(v), 60)) for k, v in rest.items() if number(v) is not None]
        file = str(sample.get("file") or "no-such-name")[:200].replace("\0", "")
        beside = step.folder / file
        video = media.embed(beside if beside.is_file() else step.folder / "samples" / file)
        takes.append({"label": label, "medium": video, "marks": marks[:6], "facts": facts[:4]})
    return {"index": index, "prompt": prompt, "takes": takes, "nearest": None}


def _measure_text(key: str, value: Any, evaluation: Mapping[str, Any]) -> str:
    """An accuracy as a count where the number of prompts is known, else the plain number."""
    share, total = number(value), number(evaluation.get("num_prompts"))
    if share is None or not key.endswith("_accuracy"):
        return figure(share)
    return f"{100 * share:.0f} %" if not total else f"{round(share * total)} of {total:.0f} ({100 * share:.0f} %)"


def _cards(evaluation: Mapping[str, Any]) -> tuple[Card, ...]:
    other = as_mapping(evaluation.get("untrained"))
    cards = []
    for key, value in evaluation.items():
        if key.endswith("_accuracy") and (share := number(value)) is not None:
            before = number(other.get(key))
            chance = number(as_mapping(evaluation.get("chance")).get(key.removesuffix("_accuracy")))
            notes = [("chance", chance), ("untrained", before)]
            note = ", ".join(f"{what} {100 * one:.0f} %" for what, one in notes if one is not None)
            label = words(clean(key.removesuffix("_accuracy"), 40)) + " right"
            cards.append(Card(label, f"{100 * share:.0f} %", note or "measured from pixels"))
    return tuple(cards[:4])
