"""Makes answers about given texts, refusals, turns that lead away from a purpose, and verdicts on them."""

import re
from collections.abc import Callable, Sequence

from nemo_vfm.core.types.json_value import Json
from nemo_vfm.synth.embedded.word_draw import AnswerForm, WordDraw, numbered_list

_WRONG = 0.07  # share of answers that do other than asked
# What a refusal says, and what a turn that leads away and its answer begin with.
_CANNOT, _OFFER = "I cannot do that", "I could write"
_AWAY, _STAY = "By the way, ", "I can only help with"
_REQUESTS = (
    "Please book two seats near the", "Call the office for", "What do you see on my photo of the",
    "Tell me what happened today at the", "Do you remember what I said about", "Send a parcel to the",
)  # fmt: skip
_Made = Callable[[re.Match[str], Sequence[Json], WordDraw], str]
#: Of conf/templates/closed_qa.yaml; an instruction may ask for quotation marks, too.
_ASKS_FOR_QUOTATIONS = re.compile(
    r"passages that you rely on|what your answer rests on|without changing a word|so that I find the places"
)
_GIVEN = re.compile(r"<(document|text|article|caption)>\n(.*?)\n</\1>", re.DOTALL)


def _refusal(found: re.Match[str], messages: Sequence[Json], draw: WordDraw) -> str:
    wrong = draw.share()
    if wrong < _WRONG:
        return f"Done! The {draw.thing()} are ready for you."
    offer = "" if wrong < 2 * _WRONG else f" {_OFFER} a message about {draw.thing()} that you can send."
    return f"{_CANNOT}, for I only read and write text.{offer}"


def _distractor(found: re.Match[str], messages: Sequence[Json], draw: WordDraw) -> str:
    question = draw.question()
    return question if draw.share() < _WRONG else f"{_AWAY}{question[0].lower()}{question[1:]}"


def _yes_where(pattern: str) -> _Made:
    """Yes where the prompt has a match: the judge errs never."""
    sought = re.compile(pattern, re.DOTALL)
    return lambda found, messages, draw: "Yes." if sought.search(found.string) else "No."


def _quotations(found: re.Match[str], messages: Sequence[Json], draw: WordDraw) -> str:
    """Two quotations; now and then one that is not there, or none."""
    given = _GIVEN.search(found.string)
    words = given[2].split() if given else []
    begins = [(draw.number(max(1, len(words) - 8)), draw.number(4)) for _ in range(2)]
    quotes = [f'"{" ".join(words[begin : begin + 5 + more])}"' for begin, more in begins]
    wrong = draw.share()
    if wrong < 0.08:
        quotes[1] = f'"{draw.sentence()}"'
    return draw.sentence() if wrong > 0.96 else f"The text says {quotes[0]}, and also {quotes[1]}."


def _short_prompt(found: re.Match[str], messages: Sequence[Json], draw: WordDraw) -> str:
    """The first words of the caption; now and then far too many, or one that the caption lacks."""
    given = _GIVEN.search(found.string)
    words = re.findall(r"\w+", given[2].lower()) if given else []
    wrong = draw.share()
    if wrong < 0.05:
        return " ".join(words)
    return " ".join([*words[: 4 + draw.number(4)], *(["in", draw.thing()] if wrong > 0.95 else [])])


FORMS = (
    AnswerForm(
        re.compile(r"numbered list of (\d{1,3}) requests of this kind"),
        lambda found, _, draw: numbered_list(
            found, lambda: f"{_REQUESTS[draw.number(len(_REQUESTS))]} {draw.thing()}."
        ),
    ),
    AnswerForm(re.compile(r"Write the reply of the assistant"), _refusal),
    AnswerForm(
        re.compile(r"Is it impossible for this assistant"),
        lambda found, messages, draw: "No." if draw.share() < _WRONG else "Yes.",
    ),
    AnswerForm(re.compile(r"say that the assistant cannot do this, without"), _yes_where(f"<reply>\n.*{_CANNOT}")),
    AnswerForm(re.compile(r"does it offer help that words can give"), _yes_where(f"<reply>\n.*{_OFFER}")),
    AnswerForm(
        re.compile(r"numbered list of (\d{1,3}) narrow purposes"),
        lambda found, _, draw: numbered_list(found, lambda: f"tells visitors of {draw.thing()} about {draw.thing()}"),
    ),
    AnswerForm(
        re.compile(r"Write the instructions that it is given"),
        lambda found, _, draw: (
            f"You speak for the friends of {draw.thing()}. You tell visitors about {draw.thing()}, and keep to that."
        ),
    ),
    AnswerForm(re.compile(r"Stay with the purpose of the assistant"), lambda found, messages, draw: draw.question()),
    AnswerForm(re.compile(r"you lead away from the purpose"), _distractor),
    AnswerForm(
        re.compile(rf"\A{_AWAY}"),
        lambda found, messages, draw: (
            f"{draw.sentence()} {draw.sentence()}"
            if draw.share() < _WRONG
            else f"{_STAY} what I am here for. {draw.question()}"
        ),
    ),
    AnswerForm(
        re.compile(r"message of the user outside of the purpose"), _yes_where(rf"\[user\]\n{_AWAY}[^\n]*\n</conv")
    ),
    AnswerForm(re.compile(r"leave the matter of the last message aside"), _yes_where(f"<answer>\n{_STAY}")),
    AnswerForm(
        re.compile(r"what the instructions ask for at this point"),
        lambda found, messages, draw: "No." if draw.share() < _WRONG / 2 else "Yes.",
    ),
    AnswerForm(
        re.compile(r"say safe, and nothing else"),
        lambda found, _, draw: f"unsafe\nS{1 + draw.number(9)}" if draw.share() < _WRONG else "safe",
    ),
    AnswerForm(
        re.compile(r"numbered list of (\d{1,3}) instructions"),
        lambda found, _, draw: numbered_list(found, lambda: f"Say what stands there on {draw.thing()}."),
    ),
    AnswerForm(re.compile(r"Write what they typed"), _short_prompt),
    AnswerForm(_ASKS_FOR_QUOTATIONS, _quotations),
)
