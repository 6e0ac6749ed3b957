"""Reads a request for scores: of `/v1/score`, or of `/v1/chat/completions` where a reward model answers it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nemo_vfm.core.types.json_value import Json
from nemo_vfm.serve.openai_api.api_error import ApiError
from nemo_vfm.serve.openai_api.chat_request import NOT_HONOURED, read_messages
from nemo_vfm.serve.openai_api.request_fields import RequestFields

Messages = Sequence[Mapping[str, Json]]
#: vLLM's names of a list of prompts and one of answers, older and newer.
_PAIRS = ("text_1", "text_2"), ("queries", "documents")
#: How tokens are chosen -> the values that ask for nothing. A score has one value at any `seed` and `max_tokens`.
_NO_CHOICE: dict[str, tuple[Json, ...]] = {
    "n": (1,), "stream": (False,), "stream_options": (), "temperature": (0, 0.0, 1, 1.0), "top_p": (1, 1.0),
    "top_k": (-1, 0), "min_p": (0, 0.0), "stop": ([],), "logit_bias": ({},), "presence_penalty": (0, 0.0),
    "frequency_penalty": (0, 0.0), "repetition_penalty": (1, 1.0), "min_tokens": (0,), "stop_token_ids": ([],),
    "top_logprobs": (0,), "chat_template_kwargs": ({},),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """What is to be scored.

    Args:
        conversations: each ends with the assistant's answer.
        field: of the request, that holds them.
        with_logprobs: whether a chat's answer has its scores as log-probabilities, too.
    """

    conversations: tuple[Messages, ...]
    field: str
    with_logprobs: bool = True


def read_scores(body: Mapping[str, Json]) -> ScoreRequest:
    """A request for `/v1/score`; `model` has been read.

    Raises:
        ApiError: 400, naming the field.
    """
    fields = RequestFields(body)
    fields.value("model")
    fields.neutral("encoding_format", "float")
    for name in ("use_activation", "activation"):  # vLLM would apply a sigmoid or softmax to the head's outputs
        fields.neutral(name, False)
    messages = fields.value("messages")
    pairs = [(names, *map(fields.value, names)) for names in _PAIRS]
    fields.require_all_read()
    given = [(names, prompts, answers) for names, prompts, answers in pairs if (prompts, answers) != (None, None)]
    if (messages is not None) + len(given) != 1:
        raise ApiError(400, "give messages (a conversation, or a list of them), or text_1 (the prompt) and text_2 "
                            "(the answer)", param="messages")  # fmt: skip
    if messages is not None:
        return ScoreRequest(_conversations(messages), "messages")
    names, prompts, answers = given[0]
    return ScoreRequest(_paired(names, prompts, answers), names[1])


def read_scored_chat(body: Mapping[str, Json]) -> ScoreRequest:
    """A request for `/v1/chat/completions`; `model` has been read.

    Raises:
        ApiError: 400, naming the field.
    """
    fields = RequestFields(body)
    fields.value("model")
    for name, values in (NOT_HONOURED | _NO_CHOICE).items():
        fields.neutral(name, *values)
    fields.name("user")
    fields.integer("seed", None, -(1 << 63), (1 << 63) - 1)
    for name in ("max_tokens", "max_completion_tokens"):
        fields.integer(name, None, 1, 1 << 30)
    is_refused = fields.value("logprobs") is not None and not fields.flag("logprobs")
    request = ScoreRequest((read_messages(fields.value("messages")),), "messages", not is_refused)
    fields.require_all_read()
    return request


def _conversations(value: Json) -> tuple[Messages, ...]:
    """One, or a list of them."""
    if isinstance(value, list) and value and isinstance(value[0], list):
        return tuple(map(read_messages, value))
    return (read_messages(value),)


def _paired(names: tuple[str, str], prompts: Json, answers: Json) -> tuple[Messages, ...]:
    """One prompt for all answers, or one for each."""
    asked, answered = (_texts(*pair) for pair in zip(names, (prompts, answers), strict=True))
    if len(asked) not in (1, len(answered)):
        raise ApiError(400, f"{names[0]} has {len(asked)} texts and {names[1]} {len(answered)}; give one prompt "
                            f"for all answers, or one for each", param=names[0])  # fmt: skip
    asked = asked * len(answered) if len(asked) == 1 else asked
    return tuple(
        ({"role": "user", "content": prompt}, {"role": "assistant", "content": answer})
        for prompt, answer in zip(asked, answered, strict=True)
    )


def _texts(name: str, value: Json) -> list[str]:
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, list) or not found or not all(isinstance(one, str) for one in found):
        raise ApiError(400, f"{name} must be a text or a list of texts, at least one", param=name)
    return found
