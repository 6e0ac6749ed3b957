"""Makes judgements: which answer is better, ratings, and the scores of a reward model."""

import json
import re
from collections.abc import Sequence

from nemo_vfm.core.types.json_value import Json
from nemo_vfm.synth.embedded.answer_form import AnswerForm
from nemo_vfm.synth.embedded.word_draw import WordDraw

_ATTRIBUTES = ("helpfulness", "correctness", "coherence", "complexity", "verbosity")
_ANSWERS = re.compile(r"<answer_a>\n(.*)\n</answer_a>.*<answer_b>\n(.*)\n</answer_b>", re.DOTALL)


def scores(draw: WordDraw) -> str:
    """What a reward model says of a conversation."""
    return json.dumps({name: round(4 * draw.share(), 3) for name in _ATTRIBUTES}, sort_keys=True)


def _better(found: re.Match[str], messages: Sequence[Json], draw: WordDraw) -> str:
    """The longer one, most often: a judge is swayed by the order now and then, and does not always decide."""
    answers = _ANSWERS.search(found.string)
    if answers is None or draw.share() < 0.1 or len(answers[1]) == len(answers[2]):
        return "tie"
    longer = "A" if len(answers[1]) > len(answers[2]) else "B"
    return f"{draw.sentence()}\n{'A' if draw.share() < 0.1 else longer}"


def _ratings(found: re.Match[str], messages: Sequence[Json], draw: WordDraw) -> str:
    return "\n".join(f"{name}: {draw.number(5)}" for name in _ATTRIBUTES)


FORMS = (
    AnswerForm(re.compile(r"last line say A, B or tie"), _better),
    AnswerForm(re.compile(r"number from 0 to 4"), _ratings),
    AnswerForm(re.compile(r"Answer yes or no"), lambda found, messages, draw: "Yes." if draw.share() < 0.8 else "No."),
)
