"""Runs the application on a socket until a signal asks it to end; answers that run are let out first."""

import asyncio
import resource
import socket
from dataclasses import dataclass
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.types.component import no_component
from nemo_vfm.serve.openai_api.access_guard import AccessGuard, is_loopback, names_of
from nemo_vfm.serve.openai_api.timed_protocol import TimedProtocol, thin_out

_MOST_CONNECTIONS = 2048


@dataclass(frozen=True, slots=True)
class Listen:
    """Where a server listens, and to whom.

    Args:
        host: a name or an address of this machine.
        port: 0 takes a free one.
        key: that requests must bring; None asks for none.
        names: further host names that requests may give.

    Raises:
        UserError: it would be reached from other machines without a key.
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
            return socket.create_server((self.host, self.port), family=family, backlog=_MOST_CONNECTIONS)
        except OSError as error:
            raise UserError(f"cannot listen on {self.host} port {self.port}: {error.strerror}; choose another by "
                            f"--port, or 0 for a free one") from None  # fmt: skip


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
        thin_out(self.server_state.connections, asyncio.get_running_loop().time())
        if self._guard.draining and not self._guard.active:
            self.should_exit = True
        return await super().on_tick(counter)


@no_component
class HttpServer:
    """The application on a socket, behind the guard.

    Args:
        app: see `application`.
        listen: where; connections are taken from now on, and answered by `run`.
    """

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
                                loop="asyncio", ws="none", lifespan="off", limit_concurrency=_MOST_CONNECTIONS,
                                proxy_headers=False)  # fmt: skip
        _allow_open_files(2 * _MOST_CONNECTIONS)
        with self._socket:
            _DrainingServer(config, self._guard).run(sockets=[self._socket])

    def drain(self) -> None:
        """Take no more, and end once every answer is out."""
        self._guard.draining = True


def _allow_open_files(count: int) -> None:
    """As far as the system lets us: its usual limit, 1,024, is less than the connections that are taken."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
