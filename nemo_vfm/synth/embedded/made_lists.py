"""Makes lists of things or of questions."""

import re
from collections.abc import Sequence

from nemo_vfm.core.types.json_value import Json
from nemo_vfm.synth.embedded.answer_form import AnswerForm
from nemo_vfm.synth.embedded.word_draw import WordDraw


def _listed(found: re.Match[str], messages: Sequence[Json], draw: WordDraw) -> str:
    make = draw.question if "questions" in found.string else draw.thing
    return "\n".join(f"{number}. {make()}" for number in range(1, int(found[1]) + 1))


FORMS = (
    AnswerForm(re.compile(r"If the text holds no list, answer: none"), lambda *_: "none"),
    AnswerForm(re.compile(r"numbered list of (\d{1,3})"), _listed),
)
