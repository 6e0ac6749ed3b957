"""Lets requests in: the host they name, the key they bring, and whether the server still takes any.

A page in a browser can reach a server on loopback through a name of its own (DNS rebinding); it then names that host.
"""

import hmac
import ipaddress
import socket
from collections.abc import Iterable

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from nemo_vfm.serve.openai_api.api_error import ApiError

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_RETRY_AFTER_S = "10"


def is_loopback(host: str) -> bool:
    """Whether a host to listen on is reached from this machine alone."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def names_of(host: str, more: Iterable[str] = ()) -> frozenset[str]:
    """Host names that requests to a server on `host` may give; beyond loopback, this machine's own too.

    Args:
        host: listened on.
        more: further names, such as that of a proxy.
    """
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
        if not self._is_known(host := _host_of(headers.get("host", ""))):
            raise ApiError(421, f"this server is not {host[:100] or 'a host without a name'}; use the address that it "
                                f"printed at its start, or allow the name with --allow-name")  # fmt: skip
        if self.draining:
            raise ApiError(503, "the server is shutting down; try another server, or later",
                           headers={"Retry-After": _RETRY_AFTER_S, "Connection": "close"})  # fmt: skip
        if self._key is not None and path != "/health" and not self._has_key(headers.get("authorization", "")):
            raise ApiError(401, "the server's key is missing or wrong; send Authorization: Bearer KEY",
                           headers={"WWW-Authenticate": "Bearer"})  # fmt: skip

    def _is_known(self, host: str) -> bool:
        return host in self._names or (self._any_address and _is_address(host))

    def _has_key(self, authorization: str) -> bool:
        scheme, _, key = authorization.partition(" ")
        assert self._key is not None
        return scheme.lower() == "bearer" and hmac.compare_digest(key.strip().encode(errors="replace"), self._key)


def _host_of(header: str) -> str:
    """Without its port and brackets, in small letters."""
    host = header.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].rstrip(".")


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
