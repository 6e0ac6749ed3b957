"""Connects to https hosts through the proxy named by HTTPS_PROXY or ALL_PROXY, except for hosts in NO_PROXY."""

import socket
from base64 import b64encode
from dataclasses import dataclass, field
from ipaddress import ip_address
from urllib.parse import unquote, urlsplit

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.network.ssrf_guard import ServiceUrl, why_not
from nemo_vfm.core.secret import register

_MAX_HEADER_BYTES = 16 << 10


@dataclass(frozen=True, slots=True)
class Proxy:
    """An HTTP proxy that opens tunnels by CONNECT."""

    host: str  #: of the proxy
    port: int  #: of the proxy
    #: value of the Proxy-Authorization header; empty sends no header.
    authorization: str = field(default="", repr=False)

    def tunnel(self, plain: socket.socket, url: ServiceUrl) -> None:
        """Ask the proxy for a tunnel to the host of the URL.

        Raises:
            UserError: the URL has a forbidden IP address, or the proxy requires credentials.
            ConnectionError: the proxy opened no tunnel.
        """
        try:
            reason = why_not(ip_address(url.host), allow_private=False)
        except ValueError:  # names cannot be checked here because the proxy resolves them
            reason = ""
        if reason:
            raise UserError(f"{url.host} is {reason}")
        host = f"[{url.host}]" if ":" in url.host else url.host
        lines = [f"CONNECT {host}:{url.port} HTTP/1.1", f"Host: {host}:{url.port}"]
        lines += [f"Proxy-Authorization: {self.authorization}"] * bool(self.authorization)
        plain.sendall("\r\n".join([*lines, "", ""]).encode("ascii"))
        # Byte by byte: what follows the response's header belongs to the tunnel.
        data = b""
        while not data.endswith(b"\r\n\r\n"):
            byte = plain.recv(1)
            if not byte or len(data) > _MAX_HEADER_BYTES:
                raise ConnectionError("the proxy's response is not HTTP")
            data += byte
        words = data.split(b"\r\n", 1)[0].split()
        if len(words) < 2 or not words[0].startswith(b"HTTP/") or not words[1].isdigit():
            raise ConnectionError("the proxy's response is not HTTP")
        status = int(words[1])
        if status == 407:
            raise UserError(f"the proxy {self.host}:{self.port} requires credentials (407): set HTTPS_PROXY to "
                            "http://USER:PASSWORD@HOST:PORT")  # fmt: skip
        if status != 200:
            raise ConnectionError(f"the proxy {self.host}:{self.port} answered {status} for {url.host}")


def proxy_for(url: ServiceUrl) -> Proxy | None:
    """Return the proxy for a URL; None for http, which stays in the local network, and for hosts in NO_PROXY.

    Raises:
        UserError: the variable is not of the form http://HOST:PORT.
    """
    from urllib.request import getproxies, proxy_bypass

    proxies = getproxies()
    text = proxies.get("https") or proxies.get("all")
    if url.scheme != "https" or not text or proxy_bypass(f"{url.host}:{url.port}"):
        return None
    parts = urlsplit(text if "://" in text else f"http://{text}")
    if parts.scheme != "http" or not parts.hostname:
        raise UserError("HTTPS_PROXY or ALL_PROXY names a proxy that is not supported; expected http://HOST:PORT")
    authorization = ""
    if parts.username is not None:
        user, password = unquote(parts.username), unquote(parts.password or "")
        encoded = b64encode(f"{user}:{password}".encode()).decode()
        register(password)
        register(encoded)
        authorization = f"Basic {encoded}"
    return Proxy(parts.hostname, parts.port or 80, authorization)
