"""Answers prompts without a model: deterministic, in the form that is asked for, and wrong at a stated rate."""

import json
from collections.abc import Sequence

from nemo_vfm.core.network.chat import Said
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.synth.embedded import (
    made_answers,
    made_calls,
    made_judgements,
    made_lists,
    made_obedience,
    made_problems,
    made_programs,
    made_refusals,
    made_tables,
)
from nemo_vfm.synth.embedded.answer_form import AnswerForm
from nemo_vfm.synth.embedded.word_draw import WordDraw

#: The more specific before the more general.
_MADE = (
    made_refusals,
    made_answers,
    made_tables,
    made_calls,
    made_problems,
    made_programs,
    made_judgements,
    made_lists,
    made_obedience,
)
_FORMS: tuple[AnswerForm, ...] = tuple(form for module in _MADE for form in module.FORMS)


class EmbeddedResponder:
    """A responder for recipes that must run without a key or a server: generator, judge and reward model.

    Args:
        error_rate: share of questions that get a wrong answer: nothing at all, or prose in the place of a form.
        name: as rows say it; another name gives other answers.
    """

    def __init__(self, *, error_rate: float = 0.02, name: str = "embedded/1") -> None:
        if not 0 <= error_rate <= 1:
            raise ValueError(f"error_rate must be a share from 0 to 1, got {error_rate}")
        self.error_rate, self.name = error_rate, name

    def ready(self) -> None:
        """It always is."""

    def identity(self) -> Json:
        """See `ChatModel`."""
        return [self.name, self.error_rate]

    def is_free(self) -> bool:
        """See `FreeModel`."""
        return True

    def say(self, messages: Sequence[Json]) -> Said:
        """A made answer, a function of the messages and the name alone."""
        draw = WordDraw(json.dumps([self.name, *messages], sort_keys=True))
        text = self._text(messages, draw)
        asked = sum(len(str(message["content"]).split()) for message in messages)
        return Said(text, "success", self.name, "", asked, len(text.split()), 0.0)

    def _text(self, messages: Sequence[Json], draw: WordDraw) -> str:
        wrong = draw.share() < self.error_rate
        made = _in_form(messages, draw)
        if wrong and (made is None or draw.share() < 0.5):
            return ""
        return f"{draw.sentence()} {draw.sentence()}" if made is None or wrong else made


def _in_form(messages: Sequence[Json], draw: WordDraw) -> str | None:
    """What is asked for; None where no form is."""
    if messages[-1]["role"] == "assistant":
        return made_judgements.scores(draw)
    for form in _FORMS:
        if match := form.pattern.search(str(messages[-1]["content"])):
            return form.answer(match, messages, draw)
    return None
