"""Counts how many stories of a language model follow the stories' grammar and do not contradict themselves."""

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
    """Judges continuations of short stories sentence by sentence, by a grammar; no model is asked.

    A text is grammatical if the model added at least one whole sentence, and all that it added follow the grammar of
    `synth/make_stories.py` and agree with earlier ones. The prompt itself is not judged.

    Args:
        texts: folder of a finished Generate step.
        baseline: folder of the same beginnings and an untrained model; None leaves the comparison out.
    """

    def __init__(self, *, texts: Path, baseline: Path | None = None) -> None:
        self.texts = local(texts, "texts")
        self.baseline = None if baseline is None else local(baseline, "baseline")

    def run(self, run: Run) -> Outcome:
        """Write judged.json, with the share of each measure and every text. UserError where texts are missing."""
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
    rows: list[dict[str, Json]] = []
    for one in texts:
        # The prompt's verdict is subtracted, so that only sentences of the model count.
        prompt, whole = judge(one["prompt"]), judge(one["prompt"] + one["text"])
        wrong, count = whole.wrong[len(prompt.wrong) :], whole.sentences - prompt.sentences
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
