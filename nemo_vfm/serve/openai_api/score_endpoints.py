"""Answers `/v1/score`, and `/v1/chat/completions` as a reward model does."""

from nemo_vfm.core.optional import require

require("starlette", purpose="Serving a model")

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from nemo_vfm.core.errors import DataError
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.models.reward import RewardHead
from nemo_vfm.serve.continuous.engine_thread import EngineThread
from nemo_vfm.serve.continuous.text_request import TextRequest
from nemo_vfm.serve.openai_api.answer_stream import admitted
from nemo_vfm.serve.openai_api.api_error import ApiError
from nemo_vfm.serve.openai_api.chat_request import NOT_HONOURED, read_messages
from nemo_vfm.serve.openai_api.completion_answer import AnswerNames, usage
from nemo_vfm.serve.openai_api.completions import require_countable
from nemo_vfm.serve.openai_api.event_stream import unless_gone
from nemo_vfm.serve.openai_api.reading_threads import ReadingThreads, require_readable
from nemo_vfm.serve.openai_api.request_fields import RequestFields
from nemo_vfm.serve.rewards.conversation_scoring import OutputListener, text_to_score
from nemo_vfm.serve.served_model import ServedModel

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
    """What is to be scored."""

    conversations: tuple[Messages, ...]  #: each ends with the assistant's answer
    field: str  #: of the request, that holds them
    with_logprobs: bool = True  #: whether a chat's answer has its scores as log-probabilities, too


class Scores:
    """The endpoints.

    Args:
        served: a reward model.
        engine: runs it.
        threads: read its requests.
    """

    def __init__(self, served: ServedModel, engine: EngineThread, threads: ReadingThreads) -> None:
        assert served.reward is not None, "other models have no scores"
        self._served, self._engine, self._threads, self._head = served, engine, threads, served.reward

    async def score(self, body: dict[str, Json], request: Request) -> Response:
        """`/v1/score`: any number of conversations."""
        asked = await self._threads.run(request, partial(self._checked, read_scores, body))
        texts = await self._texts(asked, request)
        outputs = await self._outputs(texts, request)
        data = [score_entry(index, self._head.scores(one), self._head) for index, one in enumerate(outputs)]
        return self._answer(request, texts, "score", "list", {"data": data})

    async def chat(self, body: dict[str, Json], request: Request) -> Response:
        """`/v1/chat/completions`: one conversation."""
        asked = await self._threads.run(request, partial(self._checked, read_scored_chat, body))
        texts = await self._texts(asked, request)
        outputs = await self._outputs(texts, request)
        scores = self._head.scores(outputs[0])
        content = ",".join(f"{name}:{value}" for name, value in scores.items())
        listed: list[Json] = [
            {"token": name, "logprob": value, "bytes": None, "top_logprobs": []} for name, value in scores.items()
        ]
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": content, "refusal": None},
            "finish_reason": "stop",
            "logprobs": {"content": listed} if asked.with_logprobs else None,
        }
        return self._answer(request, texts, "chatcmpl", "chat.completion", {"choices": [choice]})

    def _checked(self, read: Callable[[dict[str, Json]], ScoreRequest], body: dict[str, Json]) -> ScoreRequest:
        asked = read(body)
        require_countable(self._engine, len(asked.conversations), asked.field)
        for messages in asked.conversations:
            require_readable(list(messages), self._served.context, asked.field)
        return asked

    async def _texts(self, asked: ScoreRequest, request: Request) -> list[TextRequest]:
        """A long request takes turns with others after each conversation."""
        texts = []
        for number, messages in enumerate(asked.conversations):
            try:
                texts.append(await self._threads.run(request, partial(text_to_score, self._served, messages)))
            except DataError as error:
                which = f" (conversation {number})" if len(asked.conversations) > 1 else ""
                raise ApiError(400, f"{asked.field}{which}: {error}", param=asked.field) from None
        return texts

    async def _outputs(self, texts: Sequence[TextRequest], request: Request) -> list[list[float]]:
        """The head's outputs of each text; a client that hangs up ends them."""
        loop = asyncio.get_running_loop()
        futures: list[asyncio.Future[list[float]]] = [loop.create_future() for _ in texts]
        listeners = [OutputListener(_into(loop, future)) for future in futures]
        running = admitted(
            self._engine, list(zip(texts, listeners, strict=True)), "shorten the conversation", "messages"
        )
        try:
            return await unless_gone(request.receive, asyncio.gather(*futures))
        finally:
            self._engine.cancel([text for text in running if not text.ended])

    def _answer(
        self, request: Request, texts: Sequence[TextRequest], prefix: str, kind: str, content: dict[str, Json]
    ) -> Response:
        names = AnswerNames(request, self._served.name, self._served.revision)
        num_prompt = sum(len(text.tokens) for text in texts)
        return JSONResponse({**names.body(prefix, kind), **content, "usage": usage(num_prompt, 0)},
                            headers=names.headers())  # fmt: skip


def _into(
    loop: asyncio.AbstractEventLoop, future: "asyncio.Future[list[float]]"
) -> Callable[[list[float] | None], None]:
    """Brings a text's outputs from the engine's thread to the event loop."""

    def settle(outputs: list[float] | None) -> None:
        if future.done():  # cancelled: the client is gone, or another text has failed
            return
        if outputs is None:
            future.set_exception(ApiError(500, "the model has failed on this text; the server's log says why"))
        else:
            future.set_result(outputs)

    def publish(outputs: list[float] | None) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, outputs)

    return publish


def read_scores(body: Mapping[str, Json]) -> ScoreRequest:
    """A request for `/v1/score`; `model` has been read."""
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
    # One prompt for all answers, or one for each.
    asked, answered = (_texts(*pair) for pair in zip(names, (prompts, answers), strict=True))
    if len(asked) not in (1, len(answered)):
        raise ApiError(400, f"{names[0]} has {len(asked)} texts and {names[1]} {len(answered)}; give one prompt "
                            f"for all answers, or one for each", param=names[0])  # fmt: skip
    asked = asked * len(answered) if len(asked) == 1 else asked
    pairs_of = zip(asked, answered, strict=True)
    return ScoreRequest(tuple(({"role": "user", "content": prompt}, {"role": "assistant", "content": answer})
                              for prompt, answer in pairs_of), names[1])  # fmt: skip


def read_scored_chat(body: Mapping[str, Json]) -> ScoreRequest:
    """A request for `/v1/chat/completions`; `model` has been read."""
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


def _texts(name: str, value: Json) -> list[str]:
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, list) or not found or not all(isinstance(one, str) for one in found):
        raise ApiError(400, f"{name} must be a text or a list of texts, at least one", param=name)
    return found


def score_entry(index: int, scores: Mapping[str, float], head: RewardHead) -> dict[str, Json]:
    """An entry of `data`: as vLLM's, with the attributes besides."""
    return {"index": index, "object": "score", "score": head.score(scores), "scores": dict(scores)}
