"""Makes programming tasks, solutions in Python and tests of them, all from numbers that stand in the task."""

import re
from collections.abc import Sequence

from nemo_vfm.core.types.json_value import Json
from nemo_vfm.synth.embedded.answer_form import AnswerForm
from nemo_vfm.synth.embedded.word_draw import WordDraw

_FUNCTION = re.compile(r"scale_(\d+)_(\d+)\b")
_LEAST = re.compile(r"and 0 where the number is below (\d+)")


def _task(draw: WordDraw) -> str:
    factor, more = 2 + draw.number(97), 1 + draw.number(98)
    return (f"For {draw.thing()} that {draw.deed()} {draw.thing()}, write a function scale_{factor}_{more} that takes "
            f"a whole number and returns {factor} times the number plus {more}.")  # fmt: skip


def _tasks(found: re.Match[str], messages: Sequence[Json], draw: WordDraw) -> str:
    return "\n".join(f"{number}. {_task(draw)}" for number in range(1, int(found[1]) + 1))


def _one_task(found: re.Match[str], messages: Sequence[Json], draw: WordDraw) -> str:
    return _task(draw)


def _harder(found: re.Match[str], messages: Sequence[Json], draw: WordDraw) -> str:
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


def _fitness(found: re.Match[str], messages: Sequence[Json], draw: WordDraw) -> str:
    return "\n".join(f"{name}: {4 - (draw.share() < 0.3) - 3 * (draw.share() < 0.05)}" for name in ("task", "solution"))


def _numbers(text: str, draw: WordDraw) -> tuple[int, int, int]:
    """Of the task in a prompt; any where it is of another form."""
    function, least = _FUNCTION.search(text), _LEAST.search(text)
    factor, more = (int(function[1]), int(function[2])) if function else (2 + draw.number(97), 1 + draw.number(98))
    return factor, more, int(least[1]) if least else 0


FORMS = (
    AnswerForm(re.compile(r"numbered list of (\d{1,3}) programming tasks"), _tasks),
    AnswerForm(re.compile(r"Write one programming task"), _one_task),
    AnswerForm(re.compile(r"Make this programming task harder"), _harder),
    AnswerForm(re.compile(r"Solve this programming task"), _solution),
    AnswerForm(re.compile(r"Write tests for a solution"), _tests),
    AnswerForm(re.compile(r"Rate a programming task and its solution"), _fitness),
)
