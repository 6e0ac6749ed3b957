"""Makes problems of mathematics and solutions from the numbers in them."""

import re
from collections.abc import Sequence

from nemo_vfm.core.types.json_value import Json
from nemo_vfm.synth.embedded.answer_form import AnswerForm
from nemo_vfm.synth.embedded.word_draw import WordDraw

_PROBLEM = re.compile(r"There are (\d+) .*?, and (\d+) more come (\d+) times")


def _problems(found: re.Match[str], messages: Sequence[Json], draw: WordDraw) -> str:
    def one() -> str:
        numbers = [2 + draw.number(98) for _ in range(3)]
        return (
            f"There are {numbers[0]} {draw.thing()}, and {numbers[1]} more come {numbers[2]} times. How many are there?"
        )

    return "\n".join(f"{number}. {one()}" for number in range(1, int(found[1]) + 1))


def _solution(found: re.Match[str], messages: Sequence[Json], draw: WordDraw) -> str:
    """A right one, most often; else one too many, or no answer at the end."""
    problem, luck = _PROBLEM.search(found.string), draw.share()
    begin, more, times = map(int, problem.groups()) if problem else (draw.number(100), 1 + draw.number(9), 2)
    lines = [draw.sentence(), f"{more} times {times} is {more * times}.", f"So we add {begin} to that."]
    if luck > 0.96:
        return "Who knows how many there are?"
    return "\n".join([*lines, f"{begin + more * times + (luck < 0.08)}"])


FORMS = (
    AnswerForm(re.compile(r"numbered list of (\d{1,3}) problems"), _problems),
    AnswerForm(re.compile(r"Solve this problem step by step"), _solution),
)
