"""Answers `/v1/score`, and `/v1/chat/completions` as a reward model does."""

from nemo_vfm.core.optional import require

require("starlette", purpose="Serving a model")

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from nemo_vfm.core.errors import DataError
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.serve.continuous.engine_thread import EngineThread
from nemo_vfm.serve.continuous.text_request import TextRequest
from nemo_vfm.serve.openai_api.answer_names import AnswerNames
from nemo_vfm.serve.openai_api.answer_stream import admitted
from nemo_vfm.serve.openai_api.api_error import ApiError
from nemo_vfm.serve.openai_api.completion_answer import usage
from nemo_vfm.serve.openai_api.completions import require_countable
from nemo_vfm.serve.openai_api.event_stream import unless_gone
from nemo_vfm.serve.openai_api.reading_threads import ReadingThreads, require_readable
from nemo_vfm.serve.rewards.conversation_scoring import OutputListener, text_to_score
from nemo_vfm.serve.rewards.score_answer import score_entry, scored_choice
from nemo_vfm.serve.rewards.score_request import ScoreRequest, read_scored_chat, read_scores
from nemo_vfm.serve.served_model import ServedModel


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
        """`/v1/score`: any number of conversations.

        Raises:
            ApiError: the request cannot be answered.
        """
        asked = await self._threads.run(request, partial(self._checked, read_scores, body))
        texts = await self._texts(asked, request)
        outputs = await self._outputs(texts, request)
        data = [score_entry(index, self._head.scores(one), self._head) for index, one in enumerate(outputs)]
        return self._answer(request, texts, "score", "list", {"data": data})

    async def chat(self, body: dict[str, Json], request: Request) -> Response:
        """`/v1/chat/completions`: one conversation.

        Raises:
            ApiError: the request cannot be answered.
        """
        asked = await self._threads.run(request, partial(self._checked, read_scored_chat, body))
        texts = await self._texts(asked, request)
        outputs = await self._outputs(texts, request)
        choice = scored_choice(self._head.scores(outputs[0]), with_logprobs=asked.with_logprobs)
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
