"""Makes answers about given texts: with quotations, and short requests for long captions."""

import re
from collections.abc import Sequence

from nemo_vfm.core.types.json_value import Json
from nemo_vfm.synth.embedded.answer_form import AnswerForm
from nemo_vfm.synth.embedded.word_draw import WordDraw

#: Of conf/templates/closed_qa.yaml; an instruction may ask for quotation marks, too.
_ASKS_FOR_QUOTATIONS = re.compile(
    r"passages that you rely on|what your answer rests on|without changing a word|so that I find the places"
)
_GIVEN = re.compile(r"<(document|text|article|caption)>\n(.*?)\n</\1>", re.DOTALL)


def _quoting(found: re.Match[str], messages: Sequence[Json], draw: WordDraw) -> str:
    """Two quotations; now and then one that is not there, or none."""
    given = _GIVEN.search(found.string)
    words = given[2].split() if given else []
    quotes = [f'"{_part(words, draw)}"' for _ in range(2)]
    wrong = draw.share()
    if wrong < 0.08:
        quotes[1] = f'"{draw.sentence()}"'
    return draw.sentence() if wrong > 0.96 else f"The text says {quotes[0]}, and also {quotes[1]}."


def _part(words: Sequence[str], draw: WordDraw) -> str:
    begin = draw.number(max(1, len(words) - 8))
    return " ".join(words[begin : begin + 5 + draw.number(4)])


def _instructions(found: re.Match[str], messages: Sequence[Json], draw: WordDraw) -> str:
    return "\n".join(f"{place}. Say what stands there on {draw.thing()}." for place in range(1, int(found[1]) + 1))


def _typed(found: re.Match[str], messages: Sequence[Json], draw: WordDraw) -> str:
    """The first words of the caption; now and then far too many, or one that the caption lacks."""
    given = _GIVEN.search(found.string)
    words = re.findall(r"\w+", given[2].lower()) if given else []
    wrong = draw.share()
    if wrong < 0.05:
        return " ".join(words)
    return " ".join([*words[: 4 + draw.number(4)], *(["in", draw.thing()] if wrong > 0.95 else [])])


FORMS = (
    AnswerForm(re.compile(r"numbered list of (\d{1,3}) instructions"), _instructions),
    AnswerForm(re.compile(r"Write what they typed"), _typed),
    AnswerForm(_ASKS_FOR_QUOTATIONS, _quoting),
)
