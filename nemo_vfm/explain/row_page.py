"""Prints a row that a synthesis made: what it says, what it was made from, and each answer on the way."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from nemo_vfm.asking.journal import JournalIndex
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.runtime.terminal import Terminal

ROWS, _ANSWERS = "rows.jsonl", "answers.jsonl"


def tell_of_row(run: Path, row: str | None, *, as_json: bool) -> int:
    """Print what is known about a row."""
    found = next((line for line in _lines(run / ROWS) if line.get("id") == row), None)
    if found is None:
        ids = [str(line.get("id")) for line in _lines(run / ROWS)]
        none = "" if row is None else f" and none named {row}"
        raise UserError(f"{run} has {len(ids):,} rows{none}: name one by its id, such as nemo-vfm explain {run} "
                        f"{ids[0] if ids else 'ID'}")  # fmt: skip
    wanted = {asked["key"] for asked in found["asked"]}
    answers: dict[str, Json] = {}
    if (run / _ANSWERS).is_file():
        with (run / _ANSWERS).open("rb") as file:
            journal = JournalIndex(run / _ANSWERS, file.fileno())
            answers = {key: journal.get(key) for key in wanted if key in journal}
    if as_json:
        story = [{**asked, "answer": answers.get(asked["key"])} for asked in found["asked"]]
        sys.stdout.write(json.dumps({**found, "asked": story}, indent=1, ensure_ascii=False) + "\n")
        return 0
    paper = Terminal()
    paper.line(f"row {found['id']}", "bold")
    turns = [(message["role"], message) for message in found["messages" if "messages" in found else "prompt"]]
    if "messages" not in found:
        turns += [(side, message) for side in ("chosen", "rejected") for message in found[side]]
    for name, message in turns:
        paper.line(f"\n{name}", "bold")
        _write_lines(paper, str(message["content"]))
        for call in message.get("tool_calls") or []:
            paper.prose(f"calls {call['function']['name']} {call['function']['arguments']}", 2)
    paper.line("\nmade from", "bold")
    facts = {**found["parents"], **found["scores"], "generator": json.dumps(found["generator"]), "seed": found["seed"]}
    if found.get("verifier"):
        facts["verified"] = found["verifier"]
    for name, value in facts.items():
        paper.prose(f"{name}: {value}", 2)
    for number, asked in enumerate(found["asked"], start=1):
        answer = answers.get(asked["key"])
        paper.line(f"\nanswer {number}: prompt {asked['prompt']}", "bold")
        if answer is not None and answer.get("thought"):
            _write_lines(paper, f"thought: {answer['thought']}")
        _write_lines(paper, "no longer in the journal" if answer is None else f"{answer['model']}: {answer['text']}")
    return 0


def _lines(path: Path) -> Iterator[dict[str, Json]]:
    with path.open("rb") as file:
        yield from map(json.loads, file)


def _write_lines(paper: Terminal, text: str) -> None:
    """Each line by itself, as far in as it stands there: it may be code."""
    for line in text.splitlines():
        paper.prose(line.strip(), 2 + min(len(line) - len(line.lstrip()), 20))
