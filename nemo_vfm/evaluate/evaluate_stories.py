"""Counts how many of a language model's texts agree with their own facts, and writes judged.json."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.storage.files import write_json
from nemo_vfm.core.storage.uri import local
from nemo_vfm.core.types.job import Outcome, Run, makes
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.metrics.story_grammar import judge

_MEASURES = ("grammatical", "right_sentences", "finished")


@makes("judged.json")
class JudgeStories:
    """Judges continuations of short stories sentence by sentence; no model is asked.

    A text is grammatical where it has a whole sentence of the model's own and none that contradicts or is no sentence
    of the grammar; the beginning itself counts neither way.

    Args:
        texts: folder of a finished Generate step.
        baseline: folder of the same beginnings and an untrained model; None leaves the comparison out.
    """

    def __init__(self, *, texts: Path, baseline: Path | None = None) -> None:
        self.texts = local(texts, "texts")
        self.baseline = None if baseline is None else local(baseline, "baseline")

    def run(self, run: Run) -> Outcome:
        """Judge and write."""
        found = _judge(_read(self.texts))
        if self.baseline is not None:
            found["untrained"] = {name: _judge(_read(self.baseline))[name] for name in _MEASURES}
        write_json(run.folder / "judged.json", found)
        text = f"self-consistent texts {round(found['grammatical'] * len(found['texts']))}/{len(found['texts'])}"
        if "untrained" in found:
            text += f" (untrained {found['untrained']['grammatical']:.0%})"
        return Outcome(text, {name: found[name] for name in _MEASURES})


def _read(folder: Path) -> list[Json]:
    path = folder / "texts.jsonl"
    if not path.is_file():
        raise UserError(f"{path} is not there; expected the folder of a finished Generate step. Run that step first.")
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def _judge(texts: Sequence[Mapping[str, Json]]) -> dict[str, Json]:
    """Only generated sentences are judged: the prompt counts as correct."""
    rows: list[dict[str, Json]] = []
    for one in texts:
        given, whole = judge(one["prompt"]), judge(one["prompt"] + one["text"])
        wrong, count = whole.wrong[len(given.wrong) :], whole.sentences - given.sentences
        rows.append({
            "index": one["index"], "sentences": count, "right": count - len(wrong), "wrong": list(wrong),
            "grammatical": count > 0 and not wrong, "finished": whole.ended,
        })  # fmt: skip
    sentences = sum(row["sentences"] for row in rows)
    return {
        "grammatical": sum(row["grammatical"] for row in rows) / max(1, len(rows)),
        "right_sentences": sum(row["right"] for row in rows) / max(1, sentences),
        "finished": sum(row["finished"] for row in rows) / max(1, len(rows)),
        "texts": rows,
    }
