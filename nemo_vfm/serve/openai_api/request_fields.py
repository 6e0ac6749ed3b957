"""Reads requests: which fields each kind has, what they must be, and which values of others ask for nothing.

A field that would be ignored is refused by its name; a null is the same as an absent field.
"""

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    ValidationInfo,
)

from nemo_vfm.core.seed import derive
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.language.token_choice import Choice
from nemo_vfm.serve.continuous.text_request import TokenRules
from nemo_vfm.serve.generation_settings import REPETITION_PENALTY_RANGE, GenerationSettings
from nemo_vfm.serve.openai_api.api_error import ApiError

Messages = Sequence[Mapping[str, Json]]
_LONGEST_SHOWN, _MAX_STOPS, _LONGEST_STOP, _MAX_TOP = 80, 16, 256, 20
_MAX_TOKENS, _LARGEST_SEED, _LOWEST_TEMPERATURE = 1 << 30, (1 << 63) - 1, 1e-3
#: Fields that OpenAI knows -> the values that ask for nothing.
_NOT_HONOURED: dict[str, tuple[Json, ...]] = {
    "tools": ([],), "tool_choice": ("none", "auto"), "functions": ([],), "function_call": ("none",),
    "response_format": ({"type": "text"},), "modalities": (["text"],), "store": (False,), "metadata": ({},),
    "parallel_tool_calls": (True, False), "audio": (), "prediction": (), "reasoning_effort": (),
    "service_tier": ("auto", "default"),
}  # fmt: skip
#: How tokens are chosen -> the values that ask for nothing. A score has one value at any `seed` and `max_tokens`.
_NO_CHOICE: dict[str, tuple[Json, ...]] = {
    "n": (1,), "stream": (False,), "stream_options": (), "temperature": (0, 0.0, 1, 1.0), "top_p": (1, 1.0),
    "top_k": (-1, 0), "min_p": (0, 0.0), "stop": ([],), "logit_bias": ({},), "presence_penalty": (0, 0.0),
    "frequency_penalty": (0, 0.0), "repetition_penalty": (1, 1.0), "min_tokens": (0,), "stop_token_ids": ([],),
    "top_logprobs": (0,), "chat_template_kwargs": ({},),
}  # fmt: skip


def _int_field(default: int | None, lowest: int, highest: int) -> Any:
    return Field(default, ge=lowest, le=highest, description=f"a whole number from {lowest} to {highest}")


def _number(default: float | None, lowest: float, highest: float) -> Any:
    return Field(default, ge=lowest, le=highest, description=f"a number from {lowest:g} to {highest:g}")


_FLAG: Any = Field(False, description="true or false")
_USER: Any = Field(None, description="a text")  # means nothing to this server


class RequestFields(BaseModel):
    """A request, or an object in one; `description` of a field says what it must be."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)
    neutral: ClassVar[Mapping[str, tuple[Json, ...]]] = {}  #: fields that are not honoured -> values that pass

    @classmethod
    def read(cls, body: Mapping[str, Json], vocab: int = 0, default: GenerationSettings = GenerationSettings()) -> Self:
        """A request of this kind from JSON; tokens are below `vocab`.

        What is left out is chosen as `default` says.
        """
        if unknown := sorted(body.keys() - cls.model_fields.keys() - cls.neutral.keys()):
            name = unknown[0][:_LONGEST_SHOWN]
            raise ApiError(400, f"{name} is not a field of this server; leave it out", param=name)
        given = {name: value for name, value in body.items() if value is not None}
        for name in given.keys() & cls.neutral:
            value, values = given.pop(name), cls.neutral[name]
            if not any(type(value) is type(one) and value == one for one in values):
                hint = f"; only {' or '.join(map(json.dumps, values))} is allowed" if values else ""
                raise ApiError(400, f"{name} is not supported by this server{hint}; leave it out", param=name)
        try:
            found = cls.model_validate(given, context=vocab)
        except ValidationError as error:
            name = str(error.errors(include_url=False, include_input=False)[0]["loc"][0])
            expected = (cls.model_fields[name].description or "").format(last=vocab - 1)
            shown = json.dumps(body.get(name))[:_LONGEST_SHOWN]
            raise ApiError(400, f"{name} must be {expected}, got {shown}", param=name) from None
        found.complete(default)
        return found

    def complete(self, default: GenerationSettings) -> None:
        """Set what was left out; refuse fields that do not go together."""


def _if(check: Callable[[Any, int], bool]) -> AfterValidator:
    """Lets values pass for which this is true; it is also given the size of the vocabulary."""

    def apply_check(value: Any, info: ValidationInfo) -> Any:
        if not check(value, info.context):  # type: ignore[arg-type]
            raise ValueError
        return value

    return AfterValidator(apply_check)


def _are_tokens(value: Json, vocab: int) -> bool:
    return all(type(one) is int for one in value) and (not value or 0 <= min(value) <= max(value) < vocab)


def _is_bias(name: str, bias: float, vocab: int) -> bool:
    return name.isascii() and name.isdecimal() and len(name) < 10 and int(name) < vocab and -100 <= bias <= 100


def _as_list(value: Json) -> Json:
    return [value] if isinstance(value, str) else value


class StreamOptions(RequestFields):
    """Of a request that streams."""

    neutral = {"include_obfuscation": (False,)}
    include_usage: bool = _FLAG


class SamplingFields(RequestFields):
    """How tokens are chosen, and how the answer is sent."""

    model: Any = None  # has been read
    user: str | None = _USER
    n: int = _int_field(1, 1, 128)
    stream: bool = _FLAG
    stream_options: Any = None
    seed: int = _int_field(None, -_LARGEST_SEED - 1, _LARGEST_SEED)
    temperature: float = _number(None, 0, 100)
    top_p: float = _number(None, 0, 1)
    min_p: float = _number(None, 0, 0.999999)
    top_k: int | None = _int_field(None, -1, 1 << 30)
    stop: Annotated[
        list[Annotated[str, StringConstraints(min_length=1, max_length=_LONGEST_STOP)]], BeforeValidator(_as_list)
    ] = Field([], max_length=_MAX_STOPS, description=f"a text, or a list of at most {_MAX_STOPS}, each of 1 to "
                                                      f"{_LONGEST_STOP} characters")  # fmt: skip
    stop_token_ids: Annotated[list[int], _if(_are_tokens)] = Field(
        [], description="a list of whole numbers from 0 to {last}"
    )
    logit_bias: Annotated[
        dict[str, float], _if(lambda value, vocab: all(_is_bias(*one, vocab) for one in value.items()))
    ] = Field({}, description="an object of tokens from 0 to {last} and numbers from -100 to 100")
    repetition_penalty: float = _number(None, *REPETITION_PENALTY_RANGE)
    frequency_penalty: float = _number(0.0, -2, 2)
    presence_penalty: float = _number(0.0, -2, 2)
    min_tokens: int = _int_field(0, 0, _MAX_TOKENS)
    max_tokens: int | None = None

    def complete(self, default: GenerationSettings) -> None:
        own = {**vars(default.choice), "repetition_penalty": default.repetition_penalty, "seed": secrets.randbits(62)}
        for name in own.keys() - self.model_fields_set:
            setattr(self, name, own[name])
        if 0 < self.temperature < _LOWEST_TEMPERATURE:  # scores over it would not be finite
            raise ApiError(400, f"temperature must be 0 (greedy) or at least {_LOWEST_TEMPERATURE}",
                           param="temperature")  # fmt: skip
        if self.stream_options is not None:
            if not self.stream or not isinstance(self.stream_options, dict):
                raise ApiError(400, "stream_options must be an object, and needs stream: true", param="stream_options")
            self.stream_options = StreamOptions.read(self.stream_options)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ApiError(400, f"min_tokens ({self.min_tokens:,}) must be at most max_tokens ({self.max_tokens:,})",
                           param="min_tokens")  # fmt: skip

    def choice(self) -> Choice:
        """OpenAI's clients send top_p 0 to mean the likeliest token, and vLLM's top_k -1 or 0 to mean every token."""
        return Choice(temperature=self.temperature if self.top_p else 0.0, top_p=self.top_p or 1.0, min_p=self.min_p,
                      top_k=self.top_k if self.top_k and self.top_k > 0 else None)  # fmt: skip

    def seed_of(self, number: int) -> int:
        """Of a prompt's choice by its number; other prompts of the request do not matter."""
        return self.seed if number == 0 else derive(self.seed, "choice", number)

    def rules(self) -> TokenRules:
        """What changes scores before the choice."""
        bias = {int(name): bias for name, bias in self.logit_bias.items()}
        return TokenRules(bias, self.repetition_penalty, self.frequency_penalty, self.presence_penalty, self.min_tokens)


def _as_prompts(value: Json) -> Json:
    """Prompts, also where there is one; a list of numbers is one."""
    return value if isinstance(value, list) and not (value and type(value[0]) is int) else [value]


def _is_prompt(value: Json, vocab: int) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and bool(value) and _are_tokens(value, vocab))


class CompletionRequest(SamplingFields):
    """What `/v1/completions` is asked."""

    neutral = {"suffix": ("",)}
    prompt: Annotated[
        list[Any], BeforeValidator(_as_prompts),
        _if(lambda value, vocab: bool(value) and all(_is_prompt(one, vocab) for one in value)),
    ] = Field(
        None, validate_default=True,
        description="a text, a list of tokens (at least one, whole numbers from 0 to {last}), or a list of either",
    )  # fmt: skip
    max_tokens: int = _int_field(16, 0, _MAX_TOKENS)  #: new ones for each choice; 0 only scores
    best_of: Any = None
    echo: bool = _FLAG  #: whether the prompt is part of the answer
    logprobs: int | None = _int_field(None, 0, _MAX_TOP)  #: likeliest tokens named at each place

    def complete(self, default: GenerationSettings) -> None:
        super().complete(default)
        if self.best_of is not None and (type(self.best_of) is not int or self.best_of != self.n):
            raise ApiError(400, f"best_of is not supported by this server; only {self.n} is allowed; leave it out",
                           param="best_of")  # fmt: skip
        if not self.max_tokens and not self.echo:
            raise ApiError(400, "max_tokens: 0 generates nothing; add echo: true to score the prompt",
                           param="max_tokens")  # fmt: skip


_Conversation = Annotated[list[dict[str, Any]], Field(min_length=1)]
_CONVERSATION = "a list of objects with role and content, at least one"
_MESSAGES: Any = Field(None, validate_default=True, description=_CONVERSATION)


class ChatRequest(SamplingFields):
    """What `/v1/chat/completions` is asked."""

    neutral = _NOT_HONOURED
    messages: _Conversation = _MESSAGES
    max_tokens: int | None = _int_field(None, 1, _MAX_TOKENS)  #: of an answer; None lets it fill the model's context
    max_completion_tokens: int | None = _int_field(None, 1, _MAX_TOKENS)  #: OpenAI's newer name of it
    logprobs: bool = _FLAG
    top_logprobs: int | None = _int_field(None, 0, _MAX_TOP)
    chat_template_kwargs: Annotated[dict[str, Any], _if(lambda value, _: all(map(str.isidentifier, value)))] = Field(
        {}, description="an object whose keys are names of variables"
    )

    def complete(self, default: GenerationSettings) -> None:
        if None not in (self.max_tokens, self.max_completion_tokens) and self.max_tokens != self.max_completion_tokens:
            raise ApiError(400, "max_tokens and max_completion_tokens are the same setting; give only one",
                           param="max_tokens")  # fmt: skip
        self.max_tokens = self.max_completion_tokens if self.max_tokens is None else self.max_tokens
        super().complete(default)
        if self.top_logprobs is not None and not self.logprobs:
            raise ApiError(400, "top_logprobs needs logprobs: true", param="top_logprobs")


class ScoredChatRequest(RequestFields):
    """What `/v1/chat/completions` of a reward model is asked."""

    neutral = _NOT_HONOURED | _NO_CHOICE
    model: Any = None
    user: str | None = _USER
    messages: _Conversation = _MESSAGES
    seed: int | None = _int_field(None, -_LARGEST_SEED - 1, _LARGEST_SEED)
    max_tokens: int | None = _int_field(None, 1, _MAX_TOKENS)
    max_completion_tokens: int | None = _int_field(None, 1, _MAX_TOKENS)
    logprobs: bool = Field(True, description="true or false")

    def conversations(self) -> tuple[str, list[Messages]]:
        return "messages", [self.messages]


def _each(value: Json) -> Json:
    """Conversations, also where there is one."""
    return value if isinstance(value, list) and value and isinstance(value[0], list) else [value]


_Texts = Annotated[Annotated[list[str], Field(min_length=1)] | None, BeforeValidator(_as_list)]
_TEXTS: Any = Field(None, description="a text or a list of texts, at least one")


class ScoreRequest(RequestFields):
    """What `/v1/score` is asked: conversations, or prompts and answers by vLLM's older or newer names."""

    # vLLM would apply a sigmoid or softmax to the head's outputs.
    neutral = {"encoding_format": ("float",), "use_activation": (False,), "activation": (False,)}
    model: Any = None
    messages: Annotated[list[_Conversation] | None, BeforeValidator(_each)] = Field(None, description=_CONVERSATION)
    text_1: _Texts = _TEXTS
    text_2: _Texts = _TEXTS
    queries: _Texts = _TEXTS
    documents: _Texts = _TEXTS

    def conversations(self) -> tuple[str, list[Messages]]:
        """(the field that holds them, what is to be scored)."""
        given = [(names, texts) for names in (("text_1", "text_2"), ("queries", "documents"))
                 if any(texts := [getattr(self, name) for name in names])]  # fmt: skip
        if (self.messages is not None) + len(given) != 1:
            raise ApiError(400, "give messages (a conversation, or a list of them), or text_1 (the prompt) and text_2 "
                                "(the answer)", param="messages")  # fmt: skip
        if self.messages is not None:
            return "messages", [*self.messages]
        names, (prompts, answers) = given[0]
        if None in (prompts, answers):
            name = names[0 if prompts is None else 1]
            raise ApiError(400, f"{name} must be a text or a list of texts, at least one", param=name)
        if len(prompts) not in (1, len(answers)):
            raise ApiError(400, f"{names[0]} has {len(prompts)} texts and {names[1]} {len(answers)}; give one prompt "
                                f"for all answers, or one for each", param=names[0])  # fmt: skip
        pairs = zip(prompts * (len(answers) // len(prompts)), answers, strict=True)
        return names[1], [[{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]
                          for prompt, answer in pairs]  # fmt: skip
