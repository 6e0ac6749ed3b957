"""Asks a reward model behind an endpoint for the scores of a conversation's last answer."""

import json
from collections.abc import Iterator, Mapping, Sequence

from nemo_vfm.core.network.chat import ChatAnswer, EndpointModel, require_own, said_by
from nemo_vfm.core.network.endpoint import Endpoint, EndpointError, EndpointFault
from nemo_vfm.core.network.http_connection import one_line
from nemo_vfm.core.network.permission import SentText
from nemo_vfm.core.types.json_value import Json

#: Services that count an answer's attributes as tokens need about ten for each.
_LONGEST_ANSWER_TOKENS = 256


class RewardChat(EndpointModel):
    """A reward model whose endpoint answers as Nemotron's: `nemo-vfm serve REWARD_MODEL`, or a NIM.

    What it says is JSON, {"attribute": number} in alphabetical order.

    Args:
        endpoint: where it is.
        model: which model, as the endpoint calls it.
        require_echo: see `Chat`.
    """

    def __init__(self, *, endpoint: Endpoint, model: SentText, require_echo: bool = False) -> None:
        if not model:
            raise ValueError("model must be its name at the endpoint")
        self.endpoint, self.model, self.require_echo = endpoint, model, require_echo

    def say(self, messages: Sequence[Json]) -> ChatAnswer:
        """The scores of the assistant's message at the end.

        Raises:
            EndpointBusy, EndpointFault: see `Endpoint.ask`; an answer without a score is a fault.
            EndpointError: no usable answer to this.
            EndpointDenied: there will be none to anything.
        """
        question = {"model": self.model, "messages": list(messages), "stream": False}
        answer = self.endpoint.ask("chat/completions", question)
        require_own(answer, echoed=self.require_echo)
        # The scores in the place of log-probabilities, else those that the message lists.
        try:
            pairs = list(_pairs(answer.body["choices"][0]))
            said = said_by(answer.body, scores_text(dict(pairs)), "success", answer.seconds)
            if len(dict(pairs)) < len(pairs):
                raise ValueError("an attribute occurs twice")
        except (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError):
            shown = one_line(str(answer.body)[:200])
            raise EndpointError(f"the answer has no scores of a reward model, each attribute once with a finite "
                                f"number: {shown}") from None  # fmt: skip
        if not pairs:
            raise EndpointFault("the reward model returned no scores, as overloaded servers do; try again later")
        return said

    def longest_answer_tokens(self) -> int:
        """More than any service counts for the scores."""
        return _LONGEST_ANSWER_TOKENS

    def identity(self) -> Json:
        """All that the scores depend on, as far as it can be known here; where the service stands is not part of it."""
        return ["reward/1", self.model]


def scores_text(scores: Mapping[str, float]) -> str:
    """Scores as JSON, in alphabetical order."""
    return json.dumps(scores, sort_keys=True, ensure_ascii=False, allow_nan=False)


def _pairs(choice: Json) -> Iterator[tuple[str, float]]:
    """(attribute, score); Nemotron's own message is a list of one, which its log-probabilities spare us."""
    listed = (choice.get("logprobs") or {}).get("content")
    if listed is not None:
        yield from ((_name(one["token"]), _number(one["logprob"])) for one in listed)
    elif text := choice["message"]["content"].strip():
        for pair in text.split(","):
            name, colon, number = pair.partition(":")
            yield _name(name.strip() if colon else ""), float(number)


def _name(value: Json) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError
    return value


def _number(value: Json) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError
    return float(value)
