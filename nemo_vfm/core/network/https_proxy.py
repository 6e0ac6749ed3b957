# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Reaches https hosts through the proxy that the user's environment names: HTTPS_PROXY, ALL_PROXY and NO_PROXY."""

import socket
from base64 import b64encode
from dataclasses import dataclass, field
from ipaddress import ip_address
from urllib.parse import SplitResult, unquote, urlsplit

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.network.secret import register
from nemo_vfm.core.network.ssrf_guard import ServiceUrl, why_not

_MOST_HEADER_BYTES = 16 << 10


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy that opens tunnels.

    Args:
        host: of the proxy.
        port: of the proxy.
        authorization: value of the header Proxy-Authorization; empty sends none.
    """

    host: str
    port: int
    authorization: str = field(default="", repr=False)

    def connected(self, timeout_s: float) -> socket.socket:
        """A connection to the proxy itself; the environment is the user's, so it may be anywhere."""
        return socket.create_connection((self.host, self.port), timeout=timeout_s)

    def tunnel(self, plain: socket.socket, url: ServiceUrl) -> None:
        """Ask the proxy to pass on what follows to the host of the URL.

        Raises:
            UserError: the URL names an address that is never contacted, or the proxy wants a password.
            ConnectionError: the proxy does not.
        """
        _require_public(url)
        host = f"[{url.host}]" if ":" in url.host else url.host
        lines = [f"CONNECT {host}:{url.port} HTTP/1.1", f"Host: {host}:{url.port}"]
        lines += [f"Proxy-Authorization: {self.authorization}"] * bool(self.authorization)
        plain.sendall("\r\n".join([*lines, "", ""]).encode("ascii"))
        status = _status(plain)
        if status == 407:
            raise UserError(f"the proxy {self.host}:{self.port} wants a user and a password (407): write them into "
                            "HTTPS_PROXY as http://USER:PASSWORD@HOST:PORT")  # fmt: skip
        if status != 200:
            raise ConnectionError(f"the proxy {self.host}:{self.port} answered {status} for {url.host}")


def proxy_for(url: ServiceUrl) -> Proxy | None:
    """The proxy that the environment names for a URL; None for http, which stays in this network, and for NO_PROXY.

    Raises:
        UserError: the variable holds something else than http://HOST:PORT.
    """
    from urllib.request import getproxies, proxy_bypass

    named = getproxies()
    text = named.get("https") or named.get("all")
    if url.scheme != "https" or not text or proxy_bypass(f"{url.host}:{url.port}"):
        return None
    parts = urlsplit(text if "://" in text else f"http://{text}")
    if parts.scheme != "http" or not parts.hostname:
        raise UserError("HTTPS_PROXY or ALL_PROXY names a proxy that is not supported; expected http://HOST:PORT")
    return Proxy(parts.hostname, parts.port or 80, _basic(parts))


def _basic(parts: SplitResult) -> str:
    if parts.username is None:
        return ""
    user, password = unquote(parts.username), unquote(parts.password or "")
    register(password)
    found = b64encode(f"{user}:{password}".encode()).decode()
    register(found)
    return f"Basic {found}"


def _require_public(url: ServiceUrl) -> None:
    """The proxy looks names up where we cannot judge them; addresses we can."""
    try:
        reason = why_not(ip_address(url.host), allow_private=False)
    except ValueError:
        return
    if reason:
        raise UserError(f"{url.host} is {reason}")


def _status(plain: socket.socket) -> int:
    """The status of the proxy's answer, whose header is read byte by byte: what follows it belongs to the tunnel."""
    data = b""
    while not data.endswith(b"\r\n\r\n"):
        byte = plain.recv(1)
        if not byte or len(data) > _MOST_HEADER_BYTES:
            raise ConnectionError("the proxy's answer is not one of HTTP")
        data += byte
    words = data.split(b"\r\n", 1)[0].split()
    if len(words) < 2 or not words[0].startswith(b"HTTP/") or not words[1].isdigit():
        raise ConnectionError("the proxy's answer is not one of HTTP")
    return int(words[1])
