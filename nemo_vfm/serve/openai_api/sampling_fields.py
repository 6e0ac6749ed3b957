# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Reads what completions and chats have in common: how tokens are chosen, and how the answer is sent."""

import secrets
from dataclasses import dataclass

from nemo_vfm.core.seed import derive
from nemo_vfm.language.token_choice import Choice
from nemo_vfm.serve.openai_api.api_error import ApiError
from nemo_vfm.serve.openai_api.request_fields import RequestFields

MOST_CHOICES, MOST_STOPS, MOST_TOP = 128, 16, 20
_LOWEST_TEMPERATURE = 1e-3
_LARGEST_SEED = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class SamplingFields:
    """Of one request.

    Args:
        choice: how the next token is chosen.
        seed: of the first choice.
        stops: strings that end a text.
        num_choices: for each prompt.
        stream: whether the answer is sent as it is written.
        include_usage: whether a stream ends with the numbers of tokens.
    """

    choice: Choice
    seed: int
    stops: tuple[str, ...]
    num_choices: int
    stream: bool
    include_usage: bool

    def seed_of(self, number: int) -> int:
        """Of a prompt's choice by its number; other prompts of the request do not matter."""
        return self.seed if number == 0 else derive(self.seed, "choice", number)


def read_sampling(fields: RequestFields, default: Choice = Choice()) -> SamplingFields:
    """Read them, and refuse what OpenAI knows beside them and this server does not do; `default` is the model's own."""
    num_choices = fields.integer("n", 1, 1, MOST_CHOICES) or 1
    for name in ("presence_penalty", "frequency_penalty"):
        fields.neutral(name, 0, 0.0)
    fields.neutral("logit_bias", {})
    stream = fields.flag("stream")
    seed = fields.integer("seed", None, -_LARGEST_SEED - 1, _LARGEST_SEED)
    return SamplingFields(
        _choice(fields, default), secrets.randbits(62) if seed is None else seed, fields.texts("stop", MOST_STOPS),
        num_choices, stream, _include_usage(fields, stream),
    )  # fmt: skip


def _choice(fields: RequestFields, default: Choice) -> Choice:
    temperature = fields.number("temperature", default.temperature, 0, 100)
    top_p, min_p = fields.number("top_p", default.top_p, 0, 1), fields.number("min_p", default.min_p, 0, 0.999999)
    top_k = fields.integer("top_k", default.top_k, -1, 1 << 30)
    if 0 < temperature < _LOWEST_TEMPERATURE:  # scores over it would not be finite
        raise ApiError(400, f"temperature must be 0, which takes the likeliest token, or at least "
                            f"{_LOWEST_TEMPERATURE}", param="temperature")  # fmt: skip
    # OpenAI's clients send 0 to mean the likeliest token, and vLLM's -1 or 0 to mean every token.
    return Choice(temperature=temperature if top_p else 0.0, top_p=top_p or 1.0, min_p=min_p,
                  top_k=top_k if top_k and top_k > 0 else None)  # fmt: skip


def _include_usage(fields: RequestFields, stream: bool) -> bool:
    options = fields.value("stream_options")
    if options is None:
        return False
    if not stream or not isinstance(options, dict):
        raise ApiError(400, "stream_options must be an object, and needs stream: true", param="stream_options")
    inner = RequestFields(options)
    found = inner.flag("include_usage")
    inner.neutral("include_obfuscation", False)
    inner.require_all_read()
    return found
