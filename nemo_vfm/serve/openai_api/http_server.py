"""Runs the application on a socket until a signal asks it to end; answers that run are let out first.

A page in a browser can reach a server on loopback through a name of its own (DNS rebinding); it then names that host,
which is not let in. Connections whose requests do not arrive are closed, so that they keep no place from others.
"""

import asyncio
import hmac
import ipaddress
import resource
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from types import FrameType
from typing import Any

import h11
import uvicorn
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.types.component import no_component
from nemo_vfm.serve.openai_api.api_error import ApiError

_HEAD_TIMEOUT_S, BODY_TIMEOUT_S = 10.0, 60.0
#: What the client still sends -> seconds for it. A body that is late is told so elsewhere, and has some more here.
_LIMITS_S = {h11.IDLE: _HEAD_TIMEOUT_S, h11.SEND_BODY: BODY_TIMEOUT_S + 5}
_CROWD, _PATIENCE_S = 512, 1.0

_RETRY_AFTER_S = "10"
_MAX_CONNECTIONS = 2048


@dataclass(frozen=True, slots=True)
class Listen:
    """Where a server listens, and to whom.

    Args:
        host: a name or an address of this machine.
        port: 0 takes a free one.
        key: that requests must bring; None asks for none.
        names: further host names that requests may give.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    key: str | None = None
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not is_loopback(self.host) and self.key is None:
            raise UserError(f"{self.host} can be reached from other machines; also give --api-key-env VARIABLE, whose "
                            f"value every request must send")  # fmt: skip

    def socket(self) -> socket.socket:
        """Bound and listening."""
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        try:
            return socket.create_server((self.host, self.port), family=family, backlog=_MAX_CONNECTIONS)
        except OSError as error:
            raise UserError(f"cannot listen on {self.host} port {self.port}: {error.strerror}; choose another by "
                            f"--port, or 0 for a free one") from None  # fmt: skip


class TimedProtocol(H11Protocol):
    """uvicorn's HTTP/1.1, with a limit on the time that each part of a request takes to arrive."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._state: object = None
        self._timer: asyncio.TimerHandle | None = None
        self.unread_since: float | None = None  # a request is on its way

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()

    def handle_events(self) -> None:
        """Is called whenever something has arrived, or an answer is out."""
        super().handle_events()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
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


LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


def is_loopback(host: str) -> bool:
    """Whether a host to listen on is reached from this machine alone."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def names_of(host: str, more: Iterable[str] = ()) -> frozenset[str]:
    """Host names that requests to a server on `host` may give; beyond loopback, this machine's own too."""
    own = () if is_loopback(host) else (host, socket.gethostname(), socket.getfqdn())
    return LOOPBACK_NAMES | {name.lower() for name in (host, *own, *more)}


class AccessGuard:
    """An ASGI application around another.

    Args:
        app: the one inside.
        names: hosts that a request may name.
        any_address: whether it may also name any IP address: a browser that names one has resolved no name.
        key: that requests must bring; None asks for none.
    """

    def __init__(self, app: ASGIApp, *, names: frozenset[str], any_address: bool, key: str | None) -> None:
        self._app, self._names, self._any_address = app, names, any_address
        self._key = None if key is None else key.encode()
        self.draining, self.active = False, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it here."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        try:
            self._require_admitted(Headers(scope=scope), scope["path"])
        except ApiError as error:
            return await error.response()(scope, receive, send)
        self.active += 1
        try:
            return await self._app(scope, receive, send)
        finally:
            self.active -= 1

    def _require_admitted(self, headers: Headers, path: str) -> None:
        host = headers.get("host", "").strip().lower()  # without its port and brackets
        host = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0].rstrip(".")
        if not self._is_known(host):
            raise ApiError(421, f"this server is not {host[:100] or 'a host without a name'}; use the address that it "
                                f"printed at its start, or allow the name with --allow-name")  # fmt: skip
        if self.draining:
            raise ApiError(503, "the server is shutting down; try another server, or later",
                           headers={"Retry-After": _RETRY_AFTER_S, "Connection": "close"})  # fmt: skip
        if self._key is not None and path != "/health":
            scheme, _, key = headers.get("authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not hmac.compare_digest(key.strip().encode(errors="replace"), self._key):
                raise ApiError(401, "the server's key is missing or wrong; send Authorization: Bearer KEY",
                               headers={"WWW-Authenticate": "Bearer"})  # fmt: skip

    def _is_known(self, host: str) -> bool:
        try:
            return host in self._names or (self._any_address and bool(ipaddress.ip_address(host)))
        except ValueError:
            return False


class _DrainingServer(uvicorn.Server):
    """uvicorn's server, whose first signal lets running answers out and refuses new ones with 503."""

    def __init__(self, config: uvicorn.Config, guard: AccessGuard) -> None:
        super().__init__(config)
        self._guard = guard

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain at the first signal; the second ends at once."""
        if self._guard.draining:
            self.should_exit = self.force_exit = True
        self._guard.draining = True

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second: whether it is over."""
        now = asyncio.get_running_loop().time()
        # In a crowd, close the connections that have long been sending a request, the oldest first: thousands of
        # requests that never end would else keep everybody out until their time is over.
        there = [one for one in self.server_state.connections
                 if isinstance(one, TimedProtocol) and not one.transport.is_closing()]  # fmt: skip
        late = [one for one in there if one.unread_since is not None and now - one.unread_since > _PATIENCE_S]
        late.sort(key=lambda one: one.unread_since or now)
        for one in late[: max(0, len(there) - _CROWD)]:
            one.transport.abort()
        if self._guard.draining and not self._guard.active:
            self.should_exit = True
        return await super().on_tick(counter)


@no_component
class HttpServer:
    """The application on a socket, behind the guard; connections are taken from now on, and answered by `run`."""

    def __init__(self, app: ASGIApp, listen: Listen) -> None:
        self._guard = AccessGuard(app, names=names_of(listen.host, listen.names),
                                  any_address=not is_loopback(listen.host), key=listen.key)  # fmt: skip
        self._socket = listen.socket()

    @property
    def address(self) -> str:
        """Such as http://127.0.0.1:8000/v1."""
        host, port = self._socket.getsockname()[:2]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"

    def run(self) -> None:
        """Answer until SIGTERM, Ctrl-C or `drain`."""
        config = uvicorn.Config(self._guard, log_config=None, access_log=False, server_header=False, http=TimedProtocol,
                                loop="asyncio", ws="none", lifespan="off", limit_concurrency=_MAX_CONNECTIONS,
                                proxy_headers=False)  # fmt: skip
        # As far as the system lets us: its usual limit, 1,024, is less than the connections that are taken.
        count = 2 * _MAX_CONNECTIONS
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        with self._socket:
            _DrainingServer(config, self._guard).run(sockets=[self._socket])

    def drain(self) -> None:
        """Take no more, and end once every answer is out."""
        self._guard.draining = True
