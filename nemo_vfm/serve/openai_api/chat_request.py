"""Reads a request for `/v1/chat/completions`."""

from collections.abc import Mapping
from dataclasses import dataclass

from nemo_vfm.core.types.json_value import Json
from nemo_vfm.serve.generation_settings import GenerationSettings
from nemo_vfm.serve.openai_api.api_error import ApiError
from nemo_vfm.serve.openai_api.request_fields import RequestFields
from nemo_vfm.serve.openai_api.sampling_fields import MOST_TOP, SamplingFields, read_sampling, require_room_for

_MOST_TOKENS = 1 << 30
#: Fields that OpenAI knows -> the values that ask for nothing.
NOT_HONOURED: dict[str, tuple[Json, ...]] = {
    "tools": ([],), "tool_choice": ("none", "auto"), "functions": ([],), "function_call": ("none",),
    "response_format": ({"type": "text"},), "modalities": (["text"],), "store": (False,), "metadata": ({},),
    "parallel_tool_calls": (True, False), "audio": (), "prediction": (), "reasoning_effort": (),
    "service_tier": ("auto", "default"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """What is asked."""

    messages: tuple[Mapping[str, Json], ...]  #: each with a role and content
    max_tokens: int | None  #: of an answer; None lets it fill the model's context
    sampling: SamplingFields  #: how tokens are chosen
    num_top: int | None  #: likeliest tokens named at each place; None for no log-probabilities
    variables: Mapping[str, Json]  #: of the chat template, such as enable_thinking


def read_chat(body: Mapping[str, Json], vocab: int, default: GenerationSettings = GenerationSettings()) -> ChatRequest:
    """Read it.

    Args:
        body: JSON; `model` has been read.
        vocab: tokens are below it.
        default: how tokens are chosen where it says nothing.
    """
    fields = RequestFields(body)
    fields.value("model")
    for name, values in NOT_HONOURED.items():
        fields.neutral(name, *values)
    value = fields.value("chat_template_kwargs")
    found = {} if value is None else value
    if not isinstance(found, dict) or not all(map(str.isidentifier, found)):
        raise fields.wrong("chat_template_kwargs", "an object whose keys are names of variables")
    wanted, count = fields.flag("logprobs"), fields.integer("top_logprobs", None, 0, MOST_TOP)
    if count is not None and not wanted:
        raise ApiError(400, "top_logprobs needs logprobs: true", param="top_logprobs")
    request = ChatRequest(read_messages(fields.value("messages")), _max_tokens(fields),
                          read_sampling(fields, vocab, default), (count or 0) if wanted else None, found)  # fmt: skip
    fields.name("user")
    fields.require_all_read()
    require_room_for(request.sampling, request.max_tokens)
    return request


def read_messages(value: Json) -> tuple[Mapping[str, Json], ...]:
    """A conversation."""
    if not isinstance(value, list) or not value or not all(isinstance(one, dict) for one in value):
        raise ApiError(400, "messages must be a list of objects with role and content, at least one", param="messages")
    return tuple(value)


def _max_tokens(fields: RequestFields) -> int | None:
    """OpenAI's newer name is max_completion_tokens."""
    older, newer = (fields.integer(name, None, 1, _MOST_TOKENS) for name in ("max_tokens", "max_completion_tokens"))
    if older is not None and newer is not None and older != newer:
        raise ApiError(400, "max_tokens and max_completion_tokens are the same setting; give only one",
                       param="max_tokens")  # fmt: skip
    return older if newer is None else newer
