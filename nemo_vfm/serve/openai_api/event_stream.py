"""Sends an answer while it watches whether the client is still there."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable
from contextlib import AbstractContextManager, suppress
from typing import TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from nemo_vfm.core.types.json_value import Json
from nemo_vfm.serve.openai_api.api_error import ApiError

Result = TypeVar("Result")


class ClientGone(Exception):
    """Nobody waits for the answer any more."""


async def unless_gone(receive: Receive, work: Awaitable[Result]) -> Result:
    """The result of some work, which is cancelled once the client hangs up."""
    working, watching = asyncio.ensure_future(work), asyncio.ensure_future(_hangs_up(receive))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGone
        return working.result()
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _hangs_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Server-sent events, each a line of JSON; the last one says [DONE].

    Args:
        events: of the answer.
        work: entered before the first event; its exit frees what the events are made from, also where the client has
            hung up before any was sent.
        headers: further ones.
    """

    media_type = "text/event-stream"

    def __init__(
        self, events: AsyncIterator[Json], work: AbstractContextManager[object], headers: dict[str, str]
    ) -> None:
        super().__init__(None, headers={"Cache-Control": "no-store", **headers})
        del self.headers["content-length"]
        self._events, self._work = events, work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send them; a client that is gone ends it in silence."""
        with self._work, suppress(ClientGone):
            await unless_gone(receive, self._send_all(send))

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        try:
            async for event in self._events:
                await send(_body(json.dumps(event, ensure_ascii=False)))
            await send(_body("[DONE]"))
        except ApiError as error:  # the status has been sent: clients look for an error among the events, too
            await send(_body(json.dumps(error.body())))
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _body(text: str) -> dict[str, Json]:
    return {"type": "http.response.body", "body": f"data: {text}\n\n".encode(errors="replace"), "more_body": True}
