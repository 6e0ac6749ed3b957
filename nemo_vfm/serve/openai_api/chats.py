"""Answers `/v1/chat/completions`."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from nemo_vfm.core.errors import DataError
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.serve.answers.choice_writer import Piece
from nemo_vfm.serve.answers.token_text import TokenNames
from nemo_vfm.serve.continuous.engine_thread import EngineThread
from nemo_vfm.serve.continuous.text_request import TextRequest
from nemo_vfm.serve.openai_api.answer_stream import AnswerPlan, AnswerStream, respond
from nemo_vfm.serve.openai_api.api_error import ApiError
from nemo_vfm.serve.openai_api.chat_request import ChatRequest, read_chat
from nemo_vfm.serve.openai_api.completion_answer import AnswerNames, usage
from nemo_vfm.serve.openai_api.completions import require_countable, require_places
from nemo_vfm.serve.openai_api.reading_threads import ReadingThreads, require_readable
from nemo_vfm.serve.served_model import ServedModel


@dataclass(frozen=True, slots=True)
class _Chat:
    """A request whose messages are tokens."""

    request: ChatRequest
    prompt: tuple[int, ...]
    plan: AnswerPlan
    names: TokenNames | None  # of tokens, where log-probabilities are wanted


class Chats:
    """The endpoint.

    Args:
        served: the model.
        engine: runs it.
        threads: read its requests.
        split_thoughts: whether answers have thoughts, <think>...</think>, in a field of their own.
    """

    def __init__(
        self, served: ServedModel, engine: EngineThread, threads: ReadingThreads, *, split_thoughts: bool
    ) -> None:
        self._served, self._engine, self._threads, self._split_thoughts = served, engine, threads, split_thoughts

    async def answer(self, body: dict[str, Json], request: Request) -> Response:
        """As JSON or as a stream."""
        work = await self._threads.run(request, partial(self._read, body))
        names = AnswerNames(request, self._served.name, self._served.revision)
        stream = AnswerStream(self._served, self._engine, work.plan)
        events = self._events(work, stream, names) if work.plan.stream else None
        return await respond(
            request, stream, names.headers(), events=events, body=lambda pieces: self._body(work, pieces, names)
        )

    def _read(self, body: dict[str, Json]) -> _Chat:
        request = read_chat(body, self._served.model.vocab, self._served.generation)
        if self._served.chat is None:
            raise ApiError(
                400, f"{self._served.name} has no chat format (its folder has no chat template); use /v1/completions"
            )
        require_readable([*request.messages, dict(request.variables)], self._served.context, "messages")
        try:
            tokens = tuple(
                self._served.chat.tokens(request.messages, add_generation_prompt=True, variables=request.variables)
            )
        except DataError as error:
            raise ApiError(400, f"messages: {error}", param="messages") from None
        most = min(self._served.context, self._engine.most_tokens()) - len(tokens)
        require_places(self._served, [tokens], request.max_tokens or 1)
        stop = self._served.stop | self._served.chat.stop_tokens() | request.sampling.stop_tokens
        text = TextRequest(
            tokens,
            request.max_tokens or max(1, most),
            request.sampling.choice,
            request.sampling.seed,
            stop,
            num_top=request.num_top,
            rules=request.sampling.rules,
        )
        require_countable(self._engine, request.sampling.num_choices)
        texts = tuple(
            TextRequest(text.tokens, text.most_new, text.choice, request.sampling.seed_of(number), text.stop,
                        num_top=text.num_top, rules=text.rules)
            for number in range(request.sampling.num_choices)
        )  # fmt: skip
        plan = AnswerPlan(texts, request.sampling.stops, request.sampling.stream, self._split_thoughts)
        return _Chat(request, text.tokens, plan, None if request.num_top is None else self._served.names)

    def _body(self, work: _Chat, pieces: Sequence[Piece], names: AnswerNames) -> dict[str, Json]:
        choices = [chat_choice(number, piece, work.names) for number, piece in enumerate(pieces)]
        num_new = sum(piece.num_tokens for piece in pieces)
        return {**names.body("chatcmpl", "chat.completion"), "choices": choices,
                "usage": usage(len(work.prompt), num_new)}  # fmt: skip

    async def _events(self, work: _Chat, stream: AnswerStream, names: AnswerNames) -> AsyncIterator[Json]:
        head, counts = names.body("chatcmpl", "chat.completion.chunk"), dict[int, int]()
        async for number, piece in stream.pieces():
            delta = ({"role": "assistant"} if (number not in counts) else {}) | (
                {"reasoning_content": piece.thought} if piece.thought else {}
            )
            delta |= {"content": piece.text} if piece.text or not piece.thought else {}
            choice = {
                "index": number,
                "delta": delta,
                "finish_reason": piece.ending,
                "logprobs": None if work.names is None else _logprobs(piece, work.names),
            }
            counts[number] = piece.num_tokens
            yield {**head, "choices": [choice]}
        if work.request.sampling.include_usage:
            yield {**head, "choices": [], "usage": usage(len(work.prompt), sum(counts.values()))}


def chat_choice(index: int, piece: Piece, names: TokenNames | None) -> dict[str, Json]:
    """A whole choice; `names` are of its tokens, where log-probabilities are wanted."""
    message = {"role": "assistant", "content": piece.text, "refusal": None}
    message |= {"reasoning_content": piece.thought} if piece.thought else {}
    return {"index": index, "message": message, "finish_reason": piece.ending,
            "logprobs": None if names is None else _logprobs(piece, names)}  # fmt: skip


def _logprobs(piece: Piece, names: TokenNames) -> dict[str, Json]:
    results = [token.result for token in piece.tokens]
    return {
        "content": [
            {**_named(result.token, result.logprob, names),
             "top_logprobs": [_named(token, logprob, names) for token, logprob in result.top]}
            for result in results
        ]
    }  # fmt: skip


def _named(token: int, logprob: float | None, names: TokenNames) -> dict[str, Json]:
    own = names.bytes_of(token)
    return {"token": names.name(token), "logprob": logprob, "bytes": None if own is None else list(own)}
