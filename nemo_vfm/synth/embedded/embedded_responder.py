"""Answers prompts without a model: deterministic, in the form that is asked for, and wrong at a stated rate."""

import json
import re
from collections.abc import Sequence

from nemo_vfm.core.network.chat import ChatAnswer
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.synth.embedded import made_answers, made_obedience, made_tasks
from nemo_vfm.synth.embedded.word_draw import AnswerForm, WordDraw, numbered_list

_ATTRIBUTES = ("helpfulness", "correctness", "coherence", "complexity", "verbosity")
_ANSWERS = re.compile(r"<answer_a>\n(.*)\n</answer_a>.*<answer_b>\n(.*)\n</answer_b>", re.DOTALL)


def _prefer_longer(found: re.Match[str], messages: Sequence[Json], draw: WordDraw) -> str:
    """The longer one, most often: a judge is swayed by the order now and then, and does not always decide."""
    answers = _ANSWERS.search(found.string)
    if answers is None or draw.share() < 0.1 or len(answers[1]) == len(answers[2]):
        return "tie"
    longer = "A" if len(answers[1]) > len(answers[2]) else "B"
    return f"{draw.sentence()}\n{'A' if draw.share() < 0.1 else longer}"


#: The more specific before the more general.
_FORMS = (
    *made_answers.FORMS,
    *made_tasks.FORMS,
    AnswerForm(re.compile(r"last line say A, B or tie"), _prefer_longer),
    AnswerForm(
        re.compile(r"number from 0 to 4"),
        lambda found, _, draw: "\n".join(f"{name}: {draw.number(5)}" for name in _ATTRIBUTES),
    ),
    AnswerForm(re.compile(r"Answer yes or no"), lambda found, messages, draw: "Yes." if draw.share() < 0.8 else "No."),
    AnswerForm(re.compile(r"If the text holds no list, answer: none"), lambda *_: "none"),
    AnswerForm(
        re.compile(r"numbered list of (\d{1,3})"),
        lambda found, _, draw: numbered_list(found, draw.question if "questions" in found.string else draw.thing),
    ),
    *made_obedience.FORMS,
)


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

    def say(self, messages: Sequence[Json]) -> ChatAnswer:
        """A made answer, a function of the messages and the name alone."""
        draw = WordDraw(json.dumps([self.name, *messages], sort_keys=True))
        wrong, last = draw.share() < self.error_rate, messages[-1]
        made: str | None = None  # where no form is asked for
        if last["role"] == "assistant":  # such a conversation is for a reward model
            made = json.dumps({name: round(4 * draw.share(), 3) for name in _ATTRIBUTES}, sort_keys=True)
        for form in _FORMS if last["role"] != "assistant" else ():
            if match := form.pattern.search(str(last["content"])):
                made = form.answer(match, messages, draw)
                break
        if wrong and (made is None or draw.share() < 0.5):
            text = ""
        else:
            text = f"{draw.sentence()} {draw.sentence()}" if made is None or wrong else made
        asked = sum(len(str(message["content"]).split()) for message in messages)
        return ChatAnswer(text, "success", self.name, "", asked, len(text.split()), 0.0)
