"""Opens HTTP connections to checked IP addresses and closes them at a deadline.

A host name is resolved once, and the connection goes to the address that core/network/ssrf_guard.py checked.
"""

import http.client
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from nemo_vfm.core.network.https_proxy import Proxy
from nemo_vfm.core.network.ssrf_guard import ServiceUrl, addresses
from nemo_vfm.core.secret import conceal


class Deadline:
    """Shuts a connection down so many seconds from now on, even while bytes still arrive slowly."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self._end = seconds, time.monotonic() + seconds
        self._expired, self._timer = threading.Event(), threading.Timer(0, _shut_down)
        self._handle: socket.socket | None = None

    @property
    def remaining_s(self) -> float:
        """Seconds left, but at least 0.01: a socket timeout of 0 would mean non-blocking."""
        return max(0.01, self._end - time.monotonic())

    @property
    def expired(self) -> bool:
        """Whether the deadline has shut the connection down."""
        return self._expired.is_set()

    def watch(self, plain: socket.socket) -> None:
        """Start the timer for a socket."""
        self._handle = plain.dup()  # shutting this one down ends the connection even after TLS took the original
        self._timer = threading.Timer(self.remaining_s, _shut_down, (self._handle, self._expired))
        self._timer.daemon = True
        self._timer.start()

    def cancel(self) -> None:
        """Stop the timer, so that the connection may stay open."""
        self._timer.cancel()
        if self._handle is not None:
            self._handle.close()


@contextmanager
def connection(
    url: ServiceUrl, deadline: Deadline, *, allow_private: bool, proxy: Proxy | None = None
) -> Iterator[http.client.HTTPConnection]:
    """Open a connection to a checked address of a service; it is closed on exit.

    Args:
        url: of the service.
        deadline: limits the whole exchange unless it is cancelled.
        allow_private: whether the service may be on this machine or its local network.
        proxy: from the user's environment. It resolves the name itself, so its address cannot be checked here.

    Raises:
        UserError: connecting to the address is not allowed.
        OSError, http.client.HTTPException: the connection failed; TimeoutError if the deadline expired.
    """
    plain, link = None, http.client.HTTPConnection(url.host, url.port)
    try:
        if proxy is None:
            where = str(addresses(url, allow_private=allow_private)[0]), url.port
        else:
            where = proxy.host, proxy.port  # the user chose it, so any address is allowed
        plain = socket.create_connection(where, timeout=deadline.remaining_s)
        deadline.watch(plain)
        if proxy is not None:
            proxy.tunnel(plain, url)
        if url.scheme == "https":  # the certificate is verified for the host name in the URL
            link.sock = ssl.create_default_context().wrap_socket(plain, server_hostname=url.host)
        else:
            link.sock = plain
        yield link
        if deadline.expired:  # http.client takes a shutdown for the end of headers, or of an unsized body
            raise TimeoutError
    except (OSError, http.client.HTTPException, ValueError) as error:
        if deadline.expired or isinstance(error, TimeoutError):  # the socket's own timeout may fire first
            raise TimeoutError(f"the request took longer than {deadline.seconds:g} s") from None
        raise
    finally:
        deadline.cancel()
        link.close()
        if plain is not None:
            plain.close()


def one_line(text: str) -> str:
    """Reduce foreign text to one short line without secrets, for a message."""
    line = conceal(" ".join("".join(c if c.isprintable() else " " for c in text).split()))
    return line if len(line) <= 400 else f"{line[:400]}…"


def _shut_down(handle: socket.socket, expired: threading.Event) -> None:
    expired.set()
    try:
        handle.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # already closed
