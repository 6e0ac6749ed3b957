"""Brings the pieces of a request's choices from the engine's thread to the event loop, and answers with them."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import TracebackType

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from nemo_vfm.core.types.json_value import Json
from nemo_vfm.serve.answers.choice_writer import ChoiceWriter, Piece
from nemo_vfm.serve.continuous.batch_engine import ServedText
from nemo_vfm.serve.continuous.engine_thread import EngineThread, QueueFull
from nemo_vfm.serve.continuous.text_request import TextListener, TextRequest
from nemo_vfm.serve.openai_api.api_error import ApiError
from nemo_vfm.serve.openai_api.event_stream import EventStream, unless_gone
from nemo_vfm.serve.served_model import ServedModel


@dataclass(frozen=True, slots=True)
class AnswerPlan:
    """What a request makes of the model."""

    texts: tuple[TextRequest, ...]  #: one for each choice
    stops: tuple[str, ...]  #: strings that end a choice
    stream: bool  #: whether pieces are wanted as they come
    split_thoughts: bool = False  #: whether a piece has its thought apart from its text


class AnswerStream:
    """The choices of one request; to be used in a `with`, at whose end what still runs is cancelled.

    Args:
        served: the model.
        engine: runs it.
        plan: of the request.
    """

    def __init__(self, served: ServedModel, engine: EngineThread, plan: AnswerPlan) -> None:
        self._engine, self._count = engine, len(plan.texts)
        self._loop = asyncio.get_running_loop()
        self._pieces: asyncio.Queue[tuple[int, Piece]] = asyncio.Queue()
        writers = [
            ChoiceWriter(served.decode, text.tokens, plan.stops, partial(self._publish, number),
                         in_pieces=plan.stream,
                         split=served.thought_split(text.tokens) if plan.split_thoughts else None)
            for number, text in enumerate(plan.texts)
        ]  # fmt: skip
        pairs = list(zip(plan.texts, writers, strict=True))
        self._texts = admitted(engine, pairs, "ask for fewer tokens (max_tokens)", "max_tokens")

    def __enter__(self) -> "AnswerStream":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._engine.cancel([text for text in self._texts if not text.ended])

    async def pieces(self) -> AsyncIterator[tuple[int, Piece]]:
        """(number of the choice, its next piece) until all have ended."""
        missing = self._count
        while missing:
            number, piece = await self._pieces.get()
            if piece.ending in ("failed", "cancelled"):
                raise ApiError(500, "the model has failed on this text; the server's log says why")
            missing -= piece.ending is not None
            yield number, piece

    async def whole(self) -> Sequence[Piece]:
        """Every choice as one piece, in their order; for a plan that does not stream."""
        found = {number: piece async for number, piece in self.pieces()}
        return [found[number] for number in range(self._count)]

    def _publish(self, number: int, piece: Piece) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._pieces.put_nowait, (number, piece))


def admitted(
    engine: EngineThread, texts: Sequence[tuple[TextRequest, TextListener]], advice: str, param: str
) -> list[ServedText]:
    """Texts that the engine has taken.

    Args:
        engine: runs the model.
        texts: each with who is told about it.
        advice: what to do where one is too long for the room.
        param: the field that is at fault there.
    """
    try:
        return engine.submit(texts)
    except QueueFull as error:
        raise ApiError(429, str(error), headers={"Retry-After": str(error.retry_after_s)}) from None
    except ValueError as error:
        raise ApiError(400, f"{error}; {advice}", param=param) from None


async def respond(
    request: Request, stream: AnswerStream, headers: dict[str, str], *,
    events: AsyncIterator[Json] | None, body: Callable[[Sequence[Piece]], Json],
) -> Response:  # fmt: skip
    """The response.

    Args:
        request: whose client is watched.
        stream: of the choices.
        headers: further ones.
        events: where the client wants them as they come; None where it wants one body.
        body: of all choices.
    """
    if events is not None:
        return EventStream(events, stream, headers)
    with stream:
        pieces = await unless_gone(request.receive, stream.whole())
    return JSONResponse(await asyncio.to_thread(body, pieces), headers=headers)
