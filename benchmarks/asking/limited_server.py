"""Answers chat completions on loopback, K at once: what comes beyond that is refused, or waits. It has one thread.

It works on what its client has abandoned no longer: a place is free as soon as the connection ends.
"""

import asyncio
import json
from collections import Counter, deque
from dataclasses import dataclass, field

from benchmarks.asking.drawn_service import K, Service

_HEAD = (
    "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n{more}Connection: close\r\n\r\n"
)
#: How an attempt can end so that asking again is paid for twice.
PAID = ("answered", "cut")


@dataclass(slots=True)
class LimitedServer:
    """What the server does, and what it has seen.

    Args:
        service: how attempts end.
        refuses: whether it refuses beyond K; else it queues.
    """

    service: Service
    refuses: bool
    attempts: Counter[int] = field(default_factory=Counter)  # taken, by row
    paid: dict[int, int] = field(default_factory=dict)  # by row, the client's run in which it was last paid for
    run: int = 0
    answered: int = 0
    refused: int = 0
    respent: int = 0
    is_killing: bool = False
    busy: int = 0
    queue: deque["_Connection"] = field(default_factory=deque)

    async def start(self) -> tuple[asyncio.Server, str]:
        """Listen; the server, and its URL."""
        server = await asyncio.get_running_loop().create_server(lambda: _Connection(self), "127.0.0.1", 0, backlog=512)
        return server, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"

    def take(self, connection: "_Connection") -> None:
        """Serve, queue or refuse."""
        if self.busy < K:
            self.serve(connection)
        elif self.refuses:
            self.refused += 1
            connection.send("429 Too Many Requests", {"error": {"message": "too many requests"}}, "Retry-After: 1\r\n")
        else:
            self.queue.append(connection)

    def serve(self, connection: "_Connection") -> None:
        """Begin an attempt."""
        row = connection.row
        self.respent += self.paid.pop(row, self.run) < self.run
        kind, seconds = self.service.draw(row, self.attempts[row])
        self.attempts[row] += 1
        self.busy += 1
        connection.is_served = True
        if kind != "hang":
            connection.timer = asyncio.get_running_loop().call_later(seconds, self._end, connection, kind)

    def _end(self, connection: "_Connection", kind: str) -> None:
        self.free(connection, "answered" if kind == "answer" else kind)
        if kind == "500":
            connection.send("500 Internal Server Error", {"error": {"message": "drawn"}})
            return
        self.answered += 1
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": f"{connection.row}"}}
        usage = {"prompt_tokens": 10, "completion_tokens": 1}
        connection.send("200 OK", {"id": "x", "model": "drawn", "choices": [choice], "usage": usage})

    def free(self, connection: "_Connection", ending: str) -> None:
        """An attempt has ended; the next in the queue begins."""
        if ending in PAID:
            self.paid[connection.row] = self.run
        self.busy -= 1
        connection.is_served = False
        if self.queue:
            self.serve(self.queue.popleft())

    def lost(self, connection: "_Connection") -> None:
        """The client has gone, by a time-out or because it was killed."""
        if connection.is_served:
            if connection.timer is not None:
                connection.timer.cancel()
            self.free(connection, "cut" if self.is_killing else "hang")
        elif connection in self.queue:
            self.queue.remove(connection)


class _Connection(asyncio.Protocol):
    """One request."""

    def __init__(self, server: LimitedServer) -> None:
        self.server, self.row, self.is_served = server, -1, False
        self.timer: asyncio.TimerHandle | None = None
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, found, body = self._data.partition(b"\r\n\r\n")
        if not found or self.row >= 0:
            return
        length = next(
            int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")
        )
        if len(body) >= length:
            self.row = int(json.loads(body)["messages"][0]["content"].split()[-1])
            self.server.take(self)

    def send(self, status: str, body: object, more: str = "") -> None:
        """Answer, and close."""
        data = json.dumps(body).encode()
        if not self._transport.is_closing():
            self._transport.write(_HEAD.format(status=status, length=len(data), more=more).encode() + data)
            self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        self.server.lost(self)
