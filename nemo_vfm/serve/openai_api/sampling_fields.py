"""Reads what completions and chats have in common: how tokens are chosen, and how the answer is sent."""

import secrets
from dataclasses import dataclass

from nemo_vfm.core.seed import derive
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.language.token_choice import Choice
from nemo_vfm.serve.continuous.token_rules import TokenRules
from nemo_vfm.serve.generation_settings import REPETITION_PENALTIES, GenerationSettings
from nemo_vfm.serve.openai_api.api_error import ApiError
from nemo_vfm.serve.openai_api.request_fields import RequestFields

MOST_CHOICES, MOST_STOPS, MOST_TOP = 128, 16, 20
_LOWEST_TEMPERATURE = 1e-3
_LARGEST_SEED = (1 << 63) - 1
_MOST_TOKENS = 1 << 30


@dataclass(frozen=True, slots=True)
class SamplingFields:
    """Of one request."""

    choice: Choice  #: how the next token is chosen
    seed: int  #: of the first choice
    rules: TokenRules  #: change scores before the choice
    stops: tuple[str, ...]  #: strings that end a text
    stop_tokens: frozenset[int]  #: tokens that end it, besides the model's own
    num_choices: int  #: for each prompt
    stream: bool  #: whether the answer is sent as it is written
    include_usage: bool  #: whether a stream ends with the numbers of tokens

    def seed_of(self, number: int) -> int:
        """Of a prompt's choice by its number; other prompts of the request do not matter."""
        return self.seed if number == 0 else derive(self.seed, "choice", number)


def read_sampling(
    fields: RequestFields, vocab: int, default: GenerationSettings = GenerationSettings()
) -> SamplingFields:
    """Read them.

    Args:
        fields: of the request.
        vocab: tokens are below it.
        default: the model's own way, where the request says nothing.
    """
    num_choices = fields.integer("n", 1, 1, MOST_CHOICES) or 1
    stream = fields.flag("stream")
    seed = fields.integer("seed", None, -_LARGEST_SEED - 1, _LARGEST_SEED)
    value = fields.value("stop_token_ids")
    found = [] if value is None else value
    if not isinstance(found, list) or not all(type(one) is int and 0 <= one < vocab for one in found):
        raise fields.wrong("stop_token_ids", f"a list of whole numbers from 0 to {vocab - 1}")
    return SamplingFields(
        _choice(fields, default.choice), secrets.randbits(62) if seed is None else seed,
        _rules(fields, vocab, default), fields.texts("stop", MOST_STOPS), frozenset(found),
        num_choices, stream, _include_usage(fields, stream),
    )  # fmt: skip


def _choice(fields: RequestFields, default: Choice) -> Choice:
    temperature = fields.number("temperature", default.temperature, 0, 100)
    top_p, min_p = fields.number("top_p", default.top_p, 0, 1), fields.number("min_p", default.min_p, 0, 0.999999)
    top_k = fields.integer("top_k", default.top_k, -1, 1 << 30)
    if 0 < temperature < _LOWEST_TEMPERATURE:  # scores over it would not be finite
        raise ApiError(400, f"temperature must be 0 (greedy) or at least "
                            f"{_LOWEST_TEMPERATURE}", param="temperature")  # fmt: skip
    # OpenAI's clients send 0 to mean the likeliest token, and vLLM's -1 or 0 to mean every token.
    return Choice(temperature=temperature if top_p else 0.0, top_p=top_p or 1.0, min_p=min_p,
                  top_k=top_k if top_k and top_k > 0 else None)  # fmt: skip


def _rules(fields: RequestFields, vocab: int, default: GenerationSettings) -> TokenRules:
    value = fields.value("logit_bias")
    found = {} if value is None else value
    if not isinstance(found, dict) or not all(_is_bias(*one, vocab) for one in found.items()):
        raise fields.wrong("logit_bias", f"an object of tokens from 0 to {vocab - 1} and numbers from -100 to 100")
    return TokenRules(
        bias={int(name): float(bias) for name, bias in found.items()},
        repetition_penalty=fields.number("repetition_penalty", default.repetition_penalty, *REPETITION_PENALTIES),
        frequency_penalty=fields.number("frequency_penalty", 0.0, -2, 2),
        presence_penalty=fields.number("presence_penalty", 0.0, -2, 2),
        min_tokens=fields.integer("min_tokens", 0, 0, _MOST_TOKENS) or 0,
    )


def _is_bias(name: str, value: Json, vocab: int) -> bool:
    is_token = name.isascii() and name.isdecimal() and len(name) < 10 and int(name) < vocab
    return is_token and isinstance(value, int | float) and not isinstance(value, bool) and -100 <= value <= 100


def require_room_for(sampling: SamplingFields, max_tokens: int | None) -> None:
    """Refuse an answer that would have to be longer than it may."""
    if max_tokens is not None and sampling.rules.min_tokens > max_tokens:
        raise ApiError(400, f"min_tokens ({sampling.rules.min_tokens:,}) must be at most max_tokens ({max_tokens:,})",
                       param="min_tokens")  # fmt: skip


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
