"""Makes requests that cannot be fulfilled, refusals, turns that lead away, answers that stay, and verdicts on them."""

import re
from collections.abc import Callable, Sequence

from nemo_vfm.core.types.json_value import Json
from nemo_vfm.synth.embedded.answer_form import AnswerForm
from nemo_vfm.synth.embedded.word_draw import WordDraw

_WRONG = 0.07  # share of answers that do other than asked
# What a refusal says, and what a turn that leads away and its answer begin with.
_CANNOT, _OFFER = "I cannot do that", "I could write"
_AWAY, _STAY = "By the way, ", "I can only help with"
_REQUESTS = (
    "Please book two seats near the", "Call the office for", "What do you see on my photo of the",
    "Tell me what happened today at the", "Do you remember what I said about", "Send a parcel to the",
)  # fmt: skip
_Made = Callable[[re.Match[str], Sequence[Json], WordDraw], str]


def _requests(found: re.Match[str], messages: Sequence[Json], draw: WordDraw) -> str:
    numbers = range(1, int(found[1]) + 1)
    return "\n".join(f"{number}. {_REQUESTS[draw.number(len(_REQUESTS))]} {draw.thing()}." for number in numbers)


def _refusal(found: re.Match[str], messages: Sequence[Json], draw: WordDraw) -> str:
    wrong = draw.share()
    if wrong < _WRONG:
        return f"Done! The {draw.thing()} are ready for you."
    offer = "" if wrong < 2 * _WRONG else f" {_OFFER} a message about {draw.thing()} that you can send."
    return f"{_CANNOT}, for I only read and write text.{offer}"


def _purposes(found: re.Match[str], messages: Sequence[Json], draw: WordDraw) -> str:
    numbers = range(1, int(found[1]) + 1)
    return "\n".join(f"{number}. tells visitors of {draw.thing()} about {draw.thing()}" for number in numbers)


def _rules(found: re.Match[str], messages: Sequence[Json], draw: WordDraw) -> str:
    return f"You speak for the friends of {draw.thing()}. You tell visitors about {draw.thing()}, and keep to that."


def _distractor(found: re.Match[str], messages: Sequence[Json], draw: WordDraw) -> str:
    question = draw.question()
    return question if draw.share() < _WRONG else f"{_AWAY}{question[0].lower()}{question[1:]}"


def _answer_to_distractor(found: re.Match[str], messages: Sequence[Json], draw: WordDraw) -> str:
    if draw.share() < _WRONG:
        return f"{draw.sentence()} {draw.sentence()}"
    return f"{_STAY} what I am here for. {draw.question()}"


def _yes_where(pattern: str) -> _Made:
    """Yes where the prompt has a match: the judge errs never."""
    sought = re.compile(pattern, re.DOTALL)
    return lambda found, messages, draw: "Yes." if sought.search(found.string) else "No."


def _yes_but_for(share: float) -> _Made:
    """No so often, whatever the prompt says."""
    return lambda found, messages, draw: "No." if draw.share() < share else "Yes."


def _guarded(found: re.Match[str], messages: Sequence[Json], draw: WordDraw) -> str:
    return f"unsafe\nS{1 + draw.number(9)}" if draw.share() < _WRONG else "safe"


FORMS = (
    AnswerForm(re.compile(r"numbered list of (\d{1,3}) requests of this kind"), _requests),
    AnswerForm(re.compile(r"Write the reply of the assistant"), _refusal),
    AnswerForm(re.compile(r"Is it impossible for this assistant"), _yes_but_for(_WRONG)),
    AnswerForm(re.compile(r"say that the assistant cannot do this, without"), _yes_where(f"<reply>\n.*{_CANNOT}")),
    AnswerForm(re.compile(r"does it offer help that words can give"), _yes_where(f"<reply>\n.*{_OFFER}")),
    AnswerForm(re.compile(r"numbered list of (\d{1,3}) narrow purposes"), _purposes),
    AnswerForm(re.compile(r"Write the instructions that it is given"), _rules),
    AnswerForm(re.compile(r"Stay with the purpose of the assistant"), lambda found, messages, draw: draw.question()),
    AnswerForm(re.compile(r"you lead away from the purpose"), _distractor),
    AnswerForm(re.compile(rf"\A{_AWAY}"), _answer_to_distractor),
    AnswerForm(
        re.compile(r"message of the user outside of the purpose"), _yes_where(rf"\[user\]\n{_AWAY}[^\n]*\n</conv")
    ),
    AnswerForm(re.compile(r"leave the matter of the last message aside"), _yes_where(f"<answer>\n{_STAY}")),
    AnswerForm(re.compile(r"what the instructions ask for at this point"), _yes_but_for(_WRONG / 2)),
    AnswerForm(re.compile(r"say safe, and nothing else"), _guarded),
)
