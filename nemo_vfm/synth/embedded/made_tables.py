"""Makes tables, questions about them, their answers, and programs that compute these."""

import csv
import re
from collections.abc import Sequence

from nemo_vfm.core.types.json_value import Json
from nemo_vfm.synth.embedded.answer_form import AnswerForm
from nemo_vfm.synth.embedded.word_draw import WordDraw

_KINDS = {"total": "sum(column)", "largest value": "max(column)", "smallest value": "min(column)"}
_TABLE = re.compile(r"<table>\n(.*?)\n</table>", re.DOTALL)
_QUESTION = re.compile(r"What is the ([a-z ]+) of the column ([a-z ]+) in it\?")


def _table(found: re.Match[str], messages: Sequence[Json], draw: WordDraw) -> str:
    """Three columns and a few rows; now and then one row is too short."""
    lines = [
        f"{place + 1},{draw.thing()},{10 + draw.number(90)},{draw.number(500)}" for place in range(int(found[1]) + 2)
    ]
    if draw.number(14) == 0:
        lines[-1] = lines[-1].rpartition(",")[0]
    return "\n".join(["number,name,count,cost", *lines])


def _questions(found: re.Match[str], messages: Sequence[Json], draw: WordDraw) -> str:
    every = [f"What is the {kind} of the column {column} in it?" for column in ("count", "cost") for kind in _KINDS]
    begin = draw.number(len(every))
    chosen = [every[(begin + place) % len(every)] for place in range(int(found[1]))]
    return "\n".join(f"{place}. {question}" for place, question in enumerate(chosen, 1))


def _answer(found: re.Match[str], messages: Sequence[Json], draw: WordDraw) -> str:
    """Most often right; else one too much, or no number at all."""
    asked, table = _QUESTION.search(found.string), _TABLE.search(found.string)
    if asked is None or table is None or (wrong := draw.number(24)) == 0:
        return f"That depends. {draw.question()}"
    try:
        column = [int(row[asked[2]]) for row in csv.DictReader(table[1].splitlines())]
    except (KeyError, TypeError, ValueError):  # another model's table
        return f"The table has no such column. {draw.question()}"
    values = {"total": sum(column), "largest value": max(column), "smallest value": min(column)}
    value = values[asked[1]] + (wrong == 1)
    return f"I go through the column {asked[2]}.\nAnswer: {value}"


def _program(found: re.Match[str], messages: Sequence[Json], draw: WordDraw) -> str:
    """Most often right; else it does not read the table, stops with an error, or does not compile."""
    asked = _QUESTION.search(found.string)
    kind, name = (asked[1], asked[2]) if asked else ("total", "cost")
    read = f"column = [int(row[{name!r}]) for row in csv.DictReader(TABLE.splitlines())]"
    wrong = draw.number(20)
    lines = ["import csv", "", "column = [1, 2]" if wrong == 0 else read, f"print({_KINDS.get(kind, 'sum(column)')})"]
    if wrong in (1, 2):
        lines[-1] = ("print(column[len(column)])", "print(")[wrong - 1]
    return "\n".join(["```python", *lines, "```"])


FORMS = (
    AnswerForm(re.compile(r"numbers without units and separators, and (\d+) to"), _table),
    AnswerForm(re.compile(r"numbered list of (\d{1,3}) questions whose answers must be computed"), _questions),
    AnswerForm(re.compile(r"Write a Python program that answers a question about a table"), _program),
    AnswerForm(re.compile(r'"Answer:" and the number'), _answer),
)
