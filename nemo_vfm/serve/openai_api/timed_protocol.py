"""Closes connections whose requests do not arrive, so that they keep no place from others."""

import asyncio
from collections.abc import Iterable
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from nemo_vfm.serve.openai_api.request_body import BODY_TIMEOUT_S

_HEAD_TIMEOUT_S = 10.0
#: What the client still sends -> seconds for it. A body that is late is told so elsewhere, and has some more here.
_LIMITS_S = {h11.IDLE: _HEAD_TIMEOUT_S, h11.SEND_BODY: BODY_TIMEOUT_S + 5}
_CROWD, _PATIENCE_S = 512, 1.0


class TimedProtocol(H11Protocol):
    """uvicorn's HTTP/1.1, with a limit on the time that each part of a request takes to arrive."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._state: object = None
        self._timer: asyncio.TimerHandle | None = None
        self.unread_since: float | None = None  # a request is on its way

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See `asyncio.Protocol`."""
        super().connection_made(transport)
        self._watch()

    def handle_events(self) -> None:
        """Is called whenever something has arrived, or an answer is out."""
        super().handle_events()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        super().connection_lost(exc)
        if self._timer is not None:
            self._timer.cancel()

    def _watch(self) -> None:
        state = self.conn.their_state
        if state is self._state:
            return
        if self._timer is not None:
            self._timer.cancel()
        limit_s = _LIMITS_S.get(state)
        self._state, self.unread_since = state, None if limit_s is None else self.loop.time()
        self._timer = None if limit_s is None else self.loop.call_later(limit_s, self._give_up)

    def _give_up(self) -> None:
        if self.transport.is_closing():
            return
        if self.conn.our_state is h11.IDLE:
            self.send_400_response(f"the head of the request did not arrive within {_HEAD_TIMEOUT_S:.0f} s")
        else:
            self.transport.abort()


def thin_out(connections: Iterable[Any], now: float) -> None:
    """In a crowd, close the connections that have long been sending a request, the oldest first.

    Thousands of requests that never end would else keep everybody out until their time is over.

    Args:
        connections: all of a server.
        now: of the event loop.
    """
    there = [one for one in connections if isinstance(one, TimedProtocol) and not one.transport.is_closing()]
    late = [one for one in there if one.unread_since is not None and now - one.unread_since > _PATIENCE_S]
    late.sort(key=lambda one: one.unread_since or now)
    for one in late[: max(0, len(there) - _CROWD)]:
        one.transport.abort()
