"""Makes tables, tools, problems and programming tasks with their answers, most of them right."""

import csv
import json
import re
from collections.abc import Sequence

from nemo_vfm.core.types.json_value import Json
from nemo_vfm.synth.embedded.word_draw import AnswerForm, WordDraw, numbered_list

_VALUES = {"total": "sum(column)", "largest value": "max(column)", "smallest value": "min(column)"}
_TABLE = re.compile(r"<table>\n(.*?)\n</table>", re.DOTALL)
_QUESTION = re.compile(r"What is the ([a-z ]+) of the column ([a-z ]+) in it\?")
_TOOLS = re.compile(r"<tools>\n(.*?)\n</tools>", re.DOTALL)
_REQUEST = re.compile(r"<request>\nFind (\d+) of (?:the )?(.*?), please\.\n</request>")
_PROBLEM = re.compile(r"There are (\d+) .*?, and (\d+) more come (\d+) times")
_FUNCTION = re.compile(r"scale_(\d+)_(\d+)\b")
_LEAST = re.compile(r"and 0 where the number is below (\d+)")


def _table(found: re.Match[str], messages: Sequence[Json], draw: WordDraw) -> str:
    """Three columns and a few rows; now and then one row is too short."""
    lines = [
        f"{place + 1},{draw.thing()},{10 + draw.number(90)},{draw.number(500)}" for place in range(int(found[1]) + 2)
    ]
    if draw.number(14) == 0:
        lines[-1] = lines[-1].rpartition(",")[0]
    return "\n".join(["number,name,count,cost", *lines])


def _table_questions(found: re.Match[str], messages: Sequence[Json], draw: WordDraw) -> str:
    every = [f"What is the {kind} of the column {column} in it?" for column in ("count", "cost") for kind in _VALUES]
    begin = draw.number(len(every))
    chosen = [every[(begin + place) % len(every)] for place in range(int(found[1]))]
    return "\n".join(f"{place}. {question}" for place, question in enumerate(chosen, 1))


def _table_answer(found: re.Match[str], messages: Sequence[Json], draw: WordDraw) -> str:
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


def _table_program(found: re.Match[str], messages: Sequence[Json], draw: WordDraw) -> str:
    """Most often right; else it does not read the table, stops with an error, or does not compile."""
    asked = _QUESTION.search(found.string)
    kind, name = (asked[1], asked[2]) if asked else ("total", "cost")
    read = f"column = [int(row[{name!r}]) for row in csv.DictReader(TABLE.splitlines())]"
    wrong = draw.number(20)
    lines = ["import csv", "", "column = [1, 2]" if wrong == 0 else read, f"print({_VALUES.get(kind, 'sum(column)')})"]
    if wrong in (1, 2):
        lines[-1] = ("print(column[len(column)])", "print(")[wrong - 1]
    return "\n".join(["```python", *lines, "```"])


def _tool(draw: WordDraw, number: int) -> Json:
    kind, thing = draw.thing().split()
    properties = {
        "kind": {"type": "string", "description": f"Such as {kind}."},
        "count": {"type": "integer", "minimum": 1},
    }
    required = ["kind"] if draw.share() < 0.95 else ["kinds"]  # which no property is: a tool that is not valid
    parameters = {"type": "object", "properties": properties, "required": required}
    return {"type": "function", "function": {
        "name": f"find_{thing}_{number}", "description": f"Finds {thing}.", "parameters": parameters,
    }}  # fmt: skip


def _call(found: re.Match[str], messages: Sequence[Json], draw: WordDraw) -> str:
    """A right one where the request is one of ours, most often; else none. Wrong ones have a wrong type or name."""
    tools, request, luck = _TOOLS.search(found.string), _REQUEST.search(found.string), draw.share()
    if tools is None or (request is None) != (luck < 0.04):
        return "none"
    name = json.loads(tools[1])[0]["function"]["name"]
    count, kind = (int(request[1]), request[2]) if request else (1, "any")
    arguments = {"kind": kind, "count": f"{count} or so" if 0.04 <= luck < 0.08 else count}
    call = {"name": f"{name}_now" if 0.08 <= luck < 0.1 else name, "arguments": arguments}
    return f"```json\n{json.dumps([call])}\n```"


def _problems(found: re.Match[str], messages: Sequence[Json], draw: WordDraw) -> str:
    def one() -> str:
        numbers = [2 + draw.number(98) for _ in range(3)]
        return (
            f"There are {numbers[0]} {draw.thing()}, and {numbers[1]} more come {numbers[2]} times. How many are there?"
        )

    return numbered_list(found, one)


def _problem_solution(found: re.Match[str], messages: Sequence[Json], draw: WordDraw) -> str:
    """A right one, most often; else one too many, or no answer at the end."""
    problem, luck = _PROBLEM.search(found.string), draw.share()
    begin, more, times = map(int, problem.groups()) if problem else (draw.number(100), 1 + draw.number(9), 2)
    lines = [draw.sentence(), f"{more} times {times} is {more * times}.", f"So we add {begin} to that."]
    if luck > 0.96:
        return "Who knows how many there are?"
    return "\n".join([*lines, f"{begin + more * times + (luck < 0.08)}"])


def _task(draw: WordDraw) -> str:
    factor, more = 2 + draw.number(97), 1 + draw.number(98)
    return (f"For {draw.thing()} that {draw.deed()} {draw.thing()}, write a function scale_{factor}_{more} that takes "
            f"a whole number and returns {factor} times the number plus {more}.")  # fmt: skip


def _harden(found: re.Match[str], messages: Sequence[Json], draw: WordDraw) -> str:
    """The task with one more condition; another task where it has one."""
    task = re.search(r"<task>\n(.*)\n</task>", found.string)
    if task is None or not _FUNCTION.search(task[1]) or _LEAST.search(task[1]):
        return _task(draw)
    return f"{task[1].rstrip('.')}, and 0 where the number is below {2 + draw.number(8)}. It serves {draw.thing()}."


def _solution(found: re.Match[str], messages: Sequence[Json], draw: WordDraw) -> str:
    """A right one, most often; else it adds too much, does not compile, or is no code at all."""
    factor, more, least = _numbers(found.string, draw)
    kind = draw.number(24)
    if kind == 0:
        return f"{draw.sentence()} {draw.sentence()}"
    lines = [f"def scale_{factor}_{more}(number)" + (":" if kind != 1 else "")]
    lines += [f"    if number < {least}:", "        return 0"] if least else []
    lines += [f"    return {factor} * number + {more + (kind == 2)}"]
    return "\n".join([draw.sentence(), "", "```python", *lines, "```"])


def _tests(found: re.Match[str], messages: Sequence[Json], draw: WordDraw) -> str:
    """Right ones, most often; else one that no solution passes, or none."""
    factor, more, least = _numbers(found.string, draw)
    kind = draw.number(24)
    if kind == 0:
        return f"```python\nprint(scale_{factor}_{more}(1))\n```"
    numbers = range(4)
    right = [0 if number < least else factor * number + more for number in numbers]
    lines = [f"assert scale_{factor}_{more}({number}) == {value + (kind == number == 1)}"
             for number, value in zip(numbers, right, strict=True)]  # fmt: skip
    return "\n".join(["```python", *lines, "```"])


def _numbers(text: str, draw: WordDraw) -> tuple[int, int, int]:
    """Of the task in a prompt; any where it is of another form."""
    function, least = _FUNCTION.search(text), _LEAST.search(text)
    factor, more = (int(function[1]), int(function[2])) if function else (2 + draw.number(97), 1 + draw.number(98))
    return factor, more, int(least[1]) if least else 0


FORMS = (
    AnswerForm(re.compile(r"numbers without units and separators, and (\d+) to"), _table),
    AnswerForm(re.compile(r"numbered list of (\d{1,3}) questions whose answers must be computed"), _table_questions),
    AnswerForm(re.compile(r"Write a Python program that answers a question about a table"), _table_program),
    AnswerForm(re.compile(r'"Answer:" and the number'), _table_answer),
    AnswerForm(
        re.compile(r"Make up (\d{1,2}) functions"),
        lambda found, _, draw: json.dumps([_tool(draw, number) for number in range(1, int(found[1]) + 1)]),
    ),
    AnswerForm(
        re.compile(r"numbered list of (\d{1,3}) requests that users of this assistant"),
        lambda found, _, draw: numbered_list(found, lambda: f"Sing of {draw.thing()}."),
    ),
    AnswerForm(
        re.compile(r"numbered list of (\d{1,3}) requests that users could make"),
        lambda found, _, draw: numbered_list(
            found, lambda: f"Find {1 + draw.number(9)} of the {draw.thing()}, please."
        ),
    ),
    AnswerForm(re.compile(r"You can call these functions"), _call),
    AnswerForm(
        re.compile(r"You are the system behind them"),
        lambda found, messages, draw: json.dumps(
            {"found": [draw.thing() for _ in range(1 + draw.number(3))], "total": draw.number(100)}
        ),
    ),
    AnswerForm(re.compile(r"numbered list of (\d{1,3}) problems"), _problems),
    AnswerForm(re.compile(r"Solve this problem step by step"), _problem_solution),
    AnswerForm(
        re.compile(r"numbered list of (\d{1,3}) programming tasks"),
        lambda found, messages, draw: numbered_list(found, lambda: _task(draw)),
    ),
    AnswerForm(re.compile(r"Write one programming task"), lambda found, messages, draw: _task(draw)),
    AnswerForm(re.compile(r"Make this programming task harder"), _harden),
    AnswerForm(re.compile(r"Solve this programming task"), _solution),
    AnswerForm(re.compile(r"Write tests for a solution"), _tests),
    AnswerForm(
        re.compile(r"Rate a programming task and its solution"),
        lambda found, messages, draw: "\n".join(
            f"{name}: {4 - (draw.share() < 0.3) - 3 * (draw.share() < 0.05)}" for name in ("task", "solution")
        ),
    ),
)
