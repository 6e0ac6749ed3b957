"""Sends messages to a model behind an OpenAI-compatible endpoint and returns its answer and token counts."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from nemo_vfm.core.network.endpoint import REQUEST_PREFIX, Answer, Endpoint, EndpointError, EndpointFault
from nemo_vfm.core.network.http_connection import one_line
from nemo_vfm.core.network.permission import NOTHING, Permissions, Recipient, SentJson, SentText
from nemo_vfm.core.network.thought import split_thought
from nemo_vfm.core.types.json_value import Json

#: Where services put thoughts that they have split off themselves.
_THOUGHTS = ("reasoning_content", "reasoning")
#: Of a request; `n` would give answers that nobody reads.
_OWN_FIELDS = frozenset({"model", "messages", "stream", "n", "max_tokens", "max_completion_tokens", "temperature",
                         "top_p", "seed", "response_format"})  # fmt: skip
Ending = Literal["success", "truncated", "blocked"]
_ENDS: Mapping[str, Ending] = {
    "length": "truncated", "max_tokens": "truncated", "content_filter": "blocked", "safety": "blocked",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ChatAnswer:
    """One answer of a model."""

    text: str  #: what it said, without what it thought; empty where it is blocked
    ending: Ending  #: success, truncated (a limit of tokens) or blocked (it declined, or a filter did)
    model: str  #: as the service calls what answered
    revision: str  #: as the service calls the state of it; empty where it does not say
    tokens_in: int  #: of the question, 0 where the service does not count
    tokens_out: int  #: of the answer
    seconds: float  #: until it was there
    thought: str = ""  #: of a reasoning model, which nobody is shown but whoever reads rows or the journal


class EndpointModel:
    """What every model behind an endpoint has."""

    endpoint: Endpoint
    model: str  #: as the endpoint calls it

    def ready(self) -> None:
        self.endpoint.ready()

    def place(self) -> str:
        """Service and model, for whoever counts what is under way at both."""
        return f"{self.endpoint.url} {self.model}"

    def model_name(self) -> str:
        """As the endpoint calls it."""
        return self.model


class Chat(EndpointModel):
    """A model behind any endpoint that speaks OpenAI's `chat/completions`: vLLM, SGLang, NIM, llama.cpp, a provider.

    Args:
        endpoint: where it is.
        model: which model, as the endpoint calls it.
        max_tokens: longest answer, in tokens; that of a model which thinks first includes its thought.
        max_completion_tokens: the same, for services that refuse `max_tokens`; it is sent in the place of that.
        temperature: 0 takes the likeliest token each time; null sends none, for models that refuse it.
        top_p: see the service; null sends none.
        seed: of the service's draws. Several answers to one question would all be drawn alike; null sends none.
        response_format: see the service, such as {type: json_object}.
        extra: further fields of the request, such as {reasoning_effort: low}.
        require_echo: refuse answers that do not repeat the name of their question, in the header X-Request-Id or
            inside `id`. vLLM does with --enable-request-id-headers. Answers that repeat another question's name are
            refused in any case.
    """

    def __init__(
        self, *, endpoint: Endpoint, model: SentText, max_tokens: int = 256, max_completion_tokens: int | None = None,
        temperature: float | None = 0.0, top_p: float | None = None, seed: int | None = None,
        response_format: Mapping[str, SentJson] | None = None, extra: Mapping[str, SentJson] | None = None,
        require_echo: bool = False,
    ) -> None:  # fmt: skip
        longest = max_tokens if max_completion_tokens is None else max_completion_tokens
        if longest < 1 or (temperature is not None and temperature < 0) or not model:
            raise ValueError(
                f"model {model!r}, max_tokens {longest}, temperature {temperature}: a name, at least 1, and at "
                f"least 0 are needed"
            )
        if top_p is not None and not 0 < top_p <= 1:
            raise ValueError(f"top_p must be above 0 and at most 1, got {top_p}")
        given = {"top_p": top_p, "seed": seed, "response_format": response_format}
        if own := sorted(_OWN_FIELDS & (extra or {}).keys()):
            raise ValueError(f"extra must not hold {own[0]}: Chat sends it, or has an argument of this name")
        try:
            json.dumps(extra, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ValueError(f"extra cannot be sent as JSON: {error}") from None
        self._further = {name: value for name, value in given.items() if value is not None} | dict(extra or {})
        self.endpoint, self.model, self.require_echo = endpoint, model, require_echo
        self.max_tokens, self.max_completion_tokens, self.temperature = max_tokens, max_completion_tokens, temperature

    def say(self, messages: Sequence[Json]) -> ChatAnswer:
        """What the model says.

        Raises:
            EndpointBusy, EndpointFault: see `Endpoint.ask`; an empty answer is a fault.
            EndpointError: no usable answer to this.
            EndpointDenied: there will be none to anything.
        """
        answer = self.endpoint.ask("chat/completions", self.request(messages))
        require_own(answer, echoed=self.require_echo)
        return said_in(answer.body, answer.seconds)

    def request(self, messages: Sequence[Json]) -> Json:
        """The body of a request."""
        name = "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"
        temperature = {} if self.temperature is None else {"temperature": self.temperature}
        return {
            "model": self.model, "messages": list(messages), name: self.longest_answer_tokens(), **temperature,
            "stream": False, **self._further,
        }  # fmt: skip

    def longest_answer_tokens(self) -> int:
        """The limit on an answer."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    def identity(self) -> Json:
        """All that the words depend on, as far as it can be known here; where the service stands is not part of it."""
        limit = {} if self.max_completion_tokens is None else {"max_completion_tokens": self.max_completion_tokens}
        further = {**self._further, **limit}
        return [self.model, self.max_tokens, self.temperature, *([further] if further else [])]


class EndpointChat(Chat):
    """A `Chat` with its address beside the model's name, for `generator=endpoint generator.url=URL`.

    Args:
        model: which model, as the endpoint calls it.
        url: where it is; see `Endpoint`.
        name: in the user's endpoints file, in the place of a URL.
        timeout_s: see `Endpoint`.
        max_tokens: longest answer, in tokens; see `Chat`, as for what follows.
        max_completion_tokens: the same, for services that refuse `max_tokens`.
        temperature: 0 takes the likeliest token each time.
        top_p: see the service.
        seed: of the service's draws.
        extra: further fields of the request.
        batch: questions are written to files of OpenAI's batch API, for you to send, where the job can do so.
        permissions: given by the program that composes the recipe, never by a recipe.
    """

    def __init__(
        self, *, model: SentText, url: SentText | None = None, name: str | None = None, timeout_s: float = 120.0,
        max_tokens: int = 1024, max_completion_tokens: int | None = None, temperature: float | None = 0.0,
        top_p: float | None = None, seed: int | None = None, extra: Mapping[str, SentJson] | None = None,
        batch: bool = False, permissions: Permissions = NOTHING,
    ) -> None:  # fmt: skip
        self.batch = batch
        endpoint = Endpoint(name=name, url=url, timeout_s=timeout_s, permissions=permissions)
        super().__init__(
            endpoint=endpoint, model=model, max_tokens=max_tokens, max_completion_tokens=max_completion_tokens,
            temperature=temperature, top_p=top_p, seed=seed, extra=extra,
        )  # fmt: skip

    def recipients(self) -> tuple[Recipient, ...]:
        return self.endpoint.recipients()


def require_own(answer: Answer, *, echoed: bool) -> None:
    """Refuse an answer that names another question than ours: servers that batch have mixed them up.

    Raises:
        EndpointError: it is another's, or names none although it must (`echoed`).
    """
    own = str(answer.body.get("id", "")) if isinstance(answer.body, dict) else ""
    named = [text for text in (answer.echo or "", own) if REQUEST_PREFIX in text]
    if any(answer.request_id not in text for text in named):
        raise EndpointError("the response carries another request's id; the service mixed them up")
    if echoed and not named:
        raise EndpointError("the response lacks its request's id, which require_echo needs")


def said_in(body: Json, seconds: float) -> ChatAnswer:
    """What the body of an answer of `chat/completions` says, which took so many seconds.

    Raises:
        EndpointFault: it says nothing.
        EndpointError: it has another schema, or a limit of tokens has cut it before it said anything.
    """
    try:
        choice = body["choices"][0]
        message = choice["message"]
        ending = "blocked" if message.get("refusal") else _ENDS.get(str(choice.get("finish_reason")), "success")
        given = next((found for name in _THOUGHTS if isinstance(found := message.get(name), str) and found), "")
        silent = ending == "blocked" or (given and message.get("content") is None)
        content = "" if silent else message["content"]
        if isinstance(content, list):  # newer servers give parts
            content = " ".join(part["text"] for part in content if part.get("type") == "text")
        thought, text = split_thought(content)
        require_said(text, thought or given, ending)
        return said_by(body, text, ending, seconds, thought or given)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError):
        raise EndpointError(f"the answer has no choices[0].message.content: {one_line(str(body)[:200])}") from None


def require_said(text: str, thought: str, ending: Ending) -> None:
    """Refuse an answer that says nothing.

    Raises:
        EndpointFault: asked again, the model may say something.
        EndpointError: its limit of tokens was too low for its thought.
    """
    if text.strip() or ending == "blocked":
        return
    if thought and ending == "truncated":
        raise EndpointError("the model was still reasoning when max_tokens was reached; raise max_tokens")
    raise EndpointFault("the model returned nothing, as overloaded servers do; try again later")


def said_by(body: Json, text: str, ending: Ending, seconds: float, thought: str = "") -> ChatAnswer:
    """A text that was found in an answer's body, with what the body says of model and tokens."""
    usage = body.get("usage") or {}
    return ChatAnswer(
        text, ending, str(body.get("model", ""))[:200], str(body.get("system_fingerprint") or "")[:200],
        _count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens")), seconds, thought,
    )  # fmt: skip


def _count(value: Json) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 40 else 0
