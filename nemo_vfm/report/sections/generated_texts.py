"""Shows beginnings, how a language model continued them, and what is wrong in the result."""

from collections.abc import Iterator

from nemo_vfm.report.parts.media import SectionMedia
from nemo_vfm.report.parts.plain_text import as_mapping, as_sequence, clean, number, words
from nemo_vfm.report.parts.run_values import RunFolder
from nemo_vfm.report.parts.section import Card, Section
from nemo_vfm.report.sections.samples import UNTRAINED
from nemo_vfm.report.sections.texts import side_by_side

ORDER = 2
MAX_SHOWN, MAX_LETTERS, MAX_UNTRAINED = 12, 900, 200  # nobody reads an untrained model's text


def sections(run: RunFolder, media: SectionMedia) -> Iterator[Section]:
    """One section for all steps that wrote texts, so that the same beginnings stand side by side."""
    steps = sorted(run.steps_with("texts.jsonl"), key=lambda step: step.name in UNTRAINED)
    if not steps:
        return
    judged = next((value for _, value in run.each("judged.json")), {})
    trained = sum(step.name not in UNTRAINED for step in steps)
    columns = {}
    for step in steps:
        label, letters = "trained" if trained == 1 else words(step.name) or "run", MAX_LETTERS
        if step.name in UNTRAINED:
            label, letters = "untrained", MAX_UNTRAINED
        columns[label] = {
            place: (clean(str(line.get("prompt", "")), MAX_LETTERS), clean(str(line.get("text", "")), letters))
            for place, line in enumerate(run.read_lines(step.folder / "texts.jsonl"))
        }
    prompts = list(next(iter(columns.values())).items())
    if len(prompts) > MAX_SHOWN:
        run.note(f"The first {MAX_SHOWN} of {len(prompts)} texts are shown.")
    reasons = {}  # the first thing that is wrong in each text of the trained model; empty where nothing is
    for place, row in enumerate(map(as_mapping, as_sequence(judged.get("texts")))):
        wrong = as_sequence(row.get("wrong"))
        reasons[place] = clean(str(wrong[0])) if wrong else "" if row.get("grammatical") else "no complete sentence"
    rows = []
    for index, (prompt, _) in prompts[:MAX_SHOWN]:
        texts = [(name, found[index][1], reasons.get(index) if name == "trained" else None)
                 for name, found in columns.items() if index in found]  # fmt: skip
        rows.append({"prompt": prompt, "texts": texts})
    lead = "Each prompt, and the model's continuation."
    names = ", ".join(step.name for step in steps if step.name)
    share, before = number(judged.get("grammatical")), number(as_mapping(judged.get("untrained")).get("grammatical"))
    note = "" if before is None else f"untrained {before:.0%}"
    cards = () if share is None else (Card("self-consistent texts", f"{share:.0%}", note),)
    yield Section("Generated texts", side_by_side(rows), lead, names, cards)
