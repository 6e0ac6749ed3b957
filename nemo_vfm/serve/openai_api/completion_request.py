"""Reads a request for `/v1/completions`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nemo_vfm.core.types.json_value import Json
from nemo_vfm.serve.generation_settings import GenerationSettings
from nemo_vfm.serve.openai_api.api_error import ApiError
from nemo_vfm.serve.openai_api.request_fields import RequestFields
from nemo_vfm.serve.openai_api.sampling_fields import MOST_TOP, SamplingFields, read_sampling, require_room_for

_MOST_TOKENS = 1 << 30


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """What is asked.

    Args:
        prompts: texts, or lists of tokens.
        max_tokens: new ones for each choice; 0 only scores.
        sampling: how tokens are chosen.
        echo: whether the prompt is part of the answer.
        num_top: likeliest tokens named at each place; None for no log-probabilities.
    """

    prompts: tuple[str | tuple[int, ...], ...]
    max_tokens: int
    sampling: SamplingFields
    echo: bool
    num_top: int | None


def read_completion(
    body: Mapping[str, Json], vocab: int, default: GenerationSettings = GenerationSettings()
) -> CompletionRequest:
    """Read it.

    Args:
        body: JSON; `model` has been read.
        vocab: tokens are below it.
        default: how tokens are chosen where it says nothing.

    Raises:
        ApiError: 400, naming the field.
    """
    fields = RequestFields(body)
    fields.value("model")
    sampling = read_sampling(fields, vocab, default)
    fields.neutral("suffix", "")
    fields.name("user")
    fields.neutral("best_of", sampling.num_choices)
    request = CompletionRequest(
        _prompts(fields.value("prompt"), vocab), fields.integer("max_tokens", 16, 0, _MOST_TOKENS) or 0, sampling,
        fields.flag("echo"), fields.integer("logprobs", None, 0, MOST_TOP),
    )  # fmt: skip
    fields.require_all_read()
    require_room_for(sampling, request.max_tokens)
    if not request.max_tokens and not request.echo:
        raise ApiError(400, "max_tokens: 0 generates nothing; add echo: true to score the prompt", param="max_tokens")
    return request


def _prompts(value: Json, vocab: int) -> tuple[str | tuple[int, ...], ...]:
    """One prompt or several; a list of numbers is one."""
    if isinstance(value, str) or (isinstance(value, list) and value and _is_number(value[0])):
        value = [value]
    if not isinstance(value, list) or not value:
        raise ApiError(400, "prompt must be a text, a list of tokens, or a list of either", param="prompt")
    return tuple(_prompt(one, vocab) for one in value)


def _prompt(value: Json, vocab: int) -> str | tuple[int, ...]:
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value or not _are_tokens(value, vocab):
        raise ApiError(400, f"prompt must be a text, or a list of whole numbers from 0 to {vocab - 1}, at least one",
                       param="prompt")  # fmt: skip
    return tuple(value)


def _are_tokens(values: Sequence[Json], vocab: int) -> bool:
    return all(_is_number(one) and 0 <= one < vocab for one in values)


def _is_number(value: Json) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
