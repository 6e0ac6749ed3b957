"""Answers a request with the choices of a stream: as events while they come, or as one JSON body."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from nemo_vfm.core.types.json_value import Json
from nemo_vfm.serve.answers.choice_writer import Piece
from nemo_vfm.serve.openai_api.answer_stream import AnswerStream
from nemo_vfm.serve.openai_api.event_stream import EventStream, unless_gone


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
