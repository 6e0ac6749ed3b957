"""Reads requests for `/v1/completions` and answers them."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from nemo_vfm.core.types.json_value import Json
from nemo_vfm.serve.answers.choice_writer import Piece, WrittenToken
from nemo_vfm.serve.answers.token_text import TokenNames
from nemo_vfm.serve.continuous.engine_thread import EngineThread
from nemo_vfm.serve.continuous.text_request import TextRequest
from nemo_vfm.serve.generation_settings import GenerationSettings
from nemo_vfm.serve.openai_api.answer_stream import AnswerPlan, AnswerStream, respond
from nemo_vfm.serve.openai_api.api_error import ApiError
from nemo_vfm.serve.openai_api.completion_answer import AnswerNames, completion_choice, echoed, usage
from nemo_vfm.serve.openai_api.reading_threads import ReadingThreads, require_readable
from nemo_vfm.serve.openai_api.request_fields import RequestFields
from nemo_vfm.serve.openai_api.sampling_fields import MOST_TOP, SamplingFields, read_sampling, require_room_for
from nemo_vfm.serve.served_model import ServedModel

_MOST_TOKENS = 1 << 30


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """What is asked."""

    prompts: tuple[str | tuple[int, ...], ...]  #: texts, or lists of tokens
    max_tokens: int  #: new ones for each choice; 0 only scores
    sampling: SamplingFields  #: how tokens are chosen
    echo: bool  #: whether the prompt is part of the answer
    num_top: int | None  #: likeliest tokens named at each place; None for no log-probabilities


def read_completion(
    body: Mapping[str, Json], vocab: int, default: GenerationSettings = GenerationSettings()
) -> CompletionRequest:
    """Read it.

    Args:
        body: JSON; `model` has been read.
        vocab: tokens are below it.
        default: how tokens are chosen where it says nothing.
    """
    fields = RequestFields(body)
    fields.value("model")
    sampling = read_sampling(fields, vocab, default)
    fields.neutral("suffix", "")
    fields.name("user")
    fields.neutral("best_of", sampling.num_choices)
    # One prompt or several; a list of numbers is one.
    value = fields.value("prompt")
    if isinstance(value, str) or (isinstance(value, list) and value and _is_number(value[0])):
        value = [value]
    if not isinstance(value, list) or not value:
        raise ApiError(400, "prompt must be a text, a list of tokens, or a list of either", param="prompt")
    request = CompletionRequest(
        tuple(_prompt(one, vocab) for one in value), fields.integer("max_tokens", 16, 0, _MOST_TOKENS) or 0, sampling,
        fields.flag("echo"), fields.integer("logprobs", None, 0, MOST_TOP),
    )  # fmt: skip
    fields.require_all_read()
    require_room_for(sampling, request.max_tokens)
    if not request.max_tokens and not request.echo:
        raise ApiError(400, "max_tokens: 0 generates nothing; add echo: true to score the prompt", param="max_tokens")
    return request


def _prompt(value: Json, vocab: int) -> str | tuple[int, ...]:
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value or not all(_is_number(one) and 0 <= one < vocab for one in value):
        raise ApiError(400, f"prompt must be a text, or a list of whole numbers from 0 to {vocab - 1}, at least one",
                       param="prompt")  # fmt: skip
    return tuple(value)


def _is_number(value: Json) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


@dataclass(frozen=True, slots=True)
class _Completion:
    """A request whose prompts are tokens."""

    request: CompletionRequest
    prompts: list[tuple[int, ...]]
    plan: AnswerPlan
    names: TokenNames | None  # of tokens, where log-probabilities are wanted


class Completions:
    """The endpoint.

    Args:
        served: the model.
        engine: runs it.
        threads: read its requests.
    """

    def __init__(self, served: ServedModel, engine: EngineThread, threads: ReadingThreads) -> None:
        self._served, self._engine, self._threads = served, engine, threads

    async def answer(self, body: dict[str, Json], request: Request) -> Response:
        """As JSON or as a stream."""
        work = await self._read(body, request)
        names = AnswerNames(request, self._served.name, self._served.revision)
        stream = AnswerStream(self._served, self._engine, work.plan)
        events = self._events(work, stream, names) if work.plan.stream else None
        return await respond(
            request, stream, names.headers(), events=events, body=lambda pieces: self._body(work, pieces, names)
        )

    async def _read(self, body: dict[str, Json], request: Request) -> _Completion:
        """A long request takes turns with others after each prompt."""
        asked, names = await self._threads.run(request, partial(self._checked, body))
        prompts = [await self._threads.run(request, partial(self._tokens, prompt)) for prompt in asked.prompts]
        require_places(self._served, prompts, asked.max_tokens)
        texts = tuple(
            TextRequest(
                tokens, asked.max_tokens, asked.sampling.choice, asked.sampling.seed_of(number),
                self._served.stop | asked.sampling.stop_tokens, rules=asked.sampling.rules,
                score_prompt=asked.echo and asked.num_top is not None, num_top=asked.num_top,
            )
            for tokens in prompts for number in range(asked.sampling.num_choices)
        )  # fmt: skip
        return _Completion(asked, prompts, AnswerPlan(texts, asked.sampling.stops, asked.sampling.stream), names)

    def _checked(self, body: dict[str, Json]) -> tuple[CompletionRequest, TokenNames | None]:
        asked = read_completion(body, self._served.model.vocab, self._served.generation)
        require_countable(self._engine, len(asked.prompts) * asked.sampling.num_choices)
        for prompt in asked.prompts:
            if isinstance(prompt, str):
                require_readable(prompt, self._served.context, "prompt")
        return asked, None if asked.num_top is None else self._served.names

    def _tokens(self, prompt: str | tuple[int, ...]) -> tuple[int, ...]:
        """An empty text begins a document."""
        if not isinstance(prompt, str):
            return prompt
        return tuple(self._served.tokenizer.encode([prompt])[0]) or (self._served.tokenizer.end(),)

    def _body(self, work: _Completion, pieces: Sequence[Piece], names: AnswerNames) -> dict[str, Json]:
        choices = [self._choice(work, number, piece, self._echo(work, number, piece))
                   for number, piece in enumerate(pieces)]  # fmt: skip
        return {**names.body("cmpl", "text_completion"), "choices": choices,
                "usage": self._usage(work, sum(piece.num_tokens for piece in pieces))}  # fmt: skip

    async def _events(self, work: _Completion, stream: AnswerStream, names: AnswerNames) -> AsyncIterator[Json]:
        head, counts, shifts = names.body("cmpl", "text_completion"), dict[int, int](), dict[int, int]()
        async for number, piece in stream.pieces():
            before = None if number in shifts else await asyncio.to_thread(self._echo, work, number, piece)
            shifts.setdefault(number, len(before[0]) if before else 0)
            counts[number] = piece.num_tokens
            yield {**head, "choices": [self._choice(work, number, piece, before, shifts[number])]}
        if work.request.sampling.include_usage:
            yield {**head, "choices": [], "usage": self._usage(work, sum(counts.values()))}

    def _echo(self, work: _Completion, number: int, piece: Piece) -> tuple[str, list[WrittenToken]] | None:
        if not work.request.echo:
            return None
        return echoed(self._served.decode, work.prompts[number // work.request.sampling.num_choices], piece.given)

    def _choice(
        self, work: _Completion, number: int, piece: Piece, before: tuple[str, list[WrittenToken]] | None,
        shift: int | None = None,
    ) -> dict[str, Json]:  # fmt: skip
        shift = shift if shift is not None else len(before[0]) if before else 0
        return completion_choice(number, piece, work.names, before=before, shift=shift)

    def _usage(self, work: _Completion, num_new: int) -> dict[str, int]:
        return usage(sum(map(len, work.prompts)), num_new)


def require_places(served: ServedModel, prompts: Sequence[Sequence[int]], max_tokens: int) -> None:
    """Refuse a prompt that leaves no place in the model's context for so many new tokens."""
    longest = max(map(len, prompts))
    if longest + max_tokens > served.context:
        raise ApiError(400, f"a prompt of {longest:,} tokens and max_tokens {max_tokens:,} exceed the model's context "
                            f"of {served.context:,} tokens; shorten either", param="max_tokens")  # fmt: skip


def require_countable(engine: EngineThread, count: int, param: str = "prompt") -> None:
    """Refuse a request that no queue of this server would ever take."""
    if engine.most_waiting is not None and count > engine.most_waiting:
        raise ApiError(400, f"a request for {count:,} texts (prompts times n) is longer than the queue of "
                            f"{engine.most_waiting:,}; send several", param=param)  # fmt: skip
