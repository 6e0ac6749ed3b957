"""Answers `/v1/score`, and `/v1/chat/completions` as a reward model does."""

from nemo_vfm.core.optional import require

require("starlette", purpose="Serving a model")

import asyncio
from contextlib import suppress
from functools import partial
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from nemo_vfm.core.errors import DataError
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.serve.continuous.engine_thread import EngineThread
from nemo_vfm.serve.openai_api.answer_stream import ApiEndpoint, ReadingThreads, unless_gone, usage
from nemo_vfm.serve.openai_api.api_error import ApiError
from nemo_vfm.serve.openai_api.request_fields import Messages, ScoredChatRequest, ScoreRequest
from nemo_vfm.serve.rewards.conversation_scoring import OutputListener, text_to_score
from nemo_vfm.serve.served_model import ServedModel

_Asked = TypeVar("_Asked", ScoreRequest, ScoredChatRequest)


class Scores(ApiEndpoint):
    """The endpoints of a reward model."""

    def __init__(self, served: ServedModel, engine: EngineThread, threads: ReadingThreads) -> None:
        super().__init__(served, engine, threads)
        assert served.reward is not None, "other models have no scores"
        self._reward = served.reward

    async def score(self, body: dict[str, Json], request: Request) -> Response:
        """`/v1/score`: any number of conversations. Entries of `data` are as vLLM's, with the attributes besides."""
        _, (field, conversations) = await self.threads.run(request, partial(self._read, ScoreRequest, body))
        scores, num_prompt = await self._scores(field, conversations, request)
        data = [{"index": index, "object": "score", "score": self._reward.score(one), "scores": one}
                for index, one in enumerate(scores)]  # fmt: skip
        return self._answer(request, num_prompt, "score", "list", {"data": data})

    async def chat(self, body: dict[str, Json], request: Request) -> Response:
        """`/v1/chat/completions`: one conversation; attributes stand for tokens, scores for log-probabilities."""
        asked, (field, conversations) = await self.threads.run(request, partial(self._read, ScoredChatRequest, body))
        (scores,), num_prompt = await self._scores(field, conversations, request)
        content = ",".join(f"{name}:{value}" for name, value in scores.items())
        listed: list[Json] = [{"token": name, "logprob": value, "bytes": None, "top_logprobs": []}
                  for name, value in scores.items()]  # fmt: skip
        choice = {"index": 0, "message": {"role": "assistant", "content": content, "refusal": None},
                  "finish_reason": "stop", "logprobs": {"content": listed} if asked.logprobs else None}  # fmt: skip
        return self._answer(request, num_prompt, "chatcmpl", "chat.completion", {"choices": [choice]})

    def _read(self, kind: type[_Asked], body: dict[str, Json]) -> tuple[_Asked, tuple[str, list[Messages]]]:
        asked = kind.read(body)
        field, conversations = asked.conversations()
        self.require_countable(len(conversations), field)
        for messages in conversations:
            self.require_readable(list(messages), field)
        return asked, (field, conversations)

    async def _scores(
        self, field: str, conversations: list[Messages], request: Request
    ) -> tuple[list[dict[str, float]], int]:
        """(the scores of each, tokens of all); a client that hangs up ends them."""
        texts = []
        for number, messages in enumerate(conversations):  # a long request takes turns with others after each
            try:
                texts.append(await self.threads.run(request, partial(text_to_score, self.served, messages)))
            except DataError as error:
                which = f" (conversation {number})" if len(conversations) > 1 else ""
                raise ApiError(400, f"{field}{which}: {error}", param=field) from None
        loop = asyncio.get_running_loop()
        futures: list[asyncio.Future[list[float]]] = [loop.create_future() for _ in texts]

        def settle(future: "asyncio.Future[list[float]]", outputs: list[float] | None) -> None:
            if future.done():  # cancelled: the client is gone, or another text has failed
                return
            if outputs is None:
                future.set_exception(ApiError(500, "the model has failed on this text; the server's log says why"))
            else:
                future.set_result(outputs)

        def publish(future: "asyncio.Future[list[float]]", outputs: list[float] | None) -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(settle, future, outputs)

        pairs = [(text, OutputListener(partial(publish, future))) for text, future in zip(texts, futures, strict=True)]
        running = self.admit(pairs, "shorten the conversation", "messages")
        try:
            outputs = await unless_gone(request.receive, asyncio.gather(*futures))
        finally:
            self.engine.cancel([text for text in running if not text.ended])
        return [dict(self._reward.scores(one)) for one in outputs], sum(len(text.tokens) for text in texts)

    def _answer(
        self, request: Request, num_prompt: int, prefix: str, kind: str, content: dict[str, Json]
    ) -> JSONResponse:
        headers, head = self.head(request, prefix, kind)
        return JSONResponse({**head, **content, "usage": usage(num_prompt, 0)}, headers=headers)
