# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Opens HTTP connections to checked addresses and cuts them at a deadline.

A host's name is looked up once, and the connection goes to an address that was judged (core/network/ssrf_guard.py).
"""

import http.client
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from nemo_vfm.core.network.https_proxy import Proxy
from nemo_vfm.core.network.secret import conceal
from nemo_vfm.core.network.ssrf_guard import ServiceUrl, addresses


class Deadline:
    """Ends a connection when its time is over, however slowly bytes drip in.

    Args:
        seconds: from now on.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds, self._end = seconds, time.monotonic() + seconds
        self._over, self._timer = threading.Event(), threading.Timer(0, _cut)
        self._handle: socket.socket | None = None

    @property
    def left_s(self) -> float:
        """Seconds until the end, and never quite none: to a socket 0 means something else."""
        return max(0.01, self._end - time.monotonic())

    @property
    def passed(self) -> bool:
        """Whether it has cut the connection."""
        return self._over.is_set()

    def watch(self, plain: socket.socket) -> None:
        """Begin to wait for the end."""
        self._handle = plain.dup()  # shutting this one down ends the connection, also when TLS has the other
        self._timer = threading.Timer(self.left_s, _cut, (self._handle, self._over))
        self._timer.daemon = True
        self._timer.start()

    def lift(self) -> None:
        """Let the connection go on as long as it likes."""
        self._timer.cancel()
        if self._handle is not None:
            self._handle.close()


@contextmanager
def connection(
    url: ServiceUrl, deadline: Deadline, *, allow_private: bool, proxy: Proxy | None = None
) -> Iterator[http.client.HTTPConnection]:
    """A connection to a judged address of a service, closed at the end.

    Args:
        url: of the service.
        deadline: of all that happens on it, unless it is lifted before.
        allow_private: whether it may be on this machine or in its network.
        proxy: of the user's environment; it looks the name up, so the address cannot be judged here.

    Raises:
        UserError: the address may not be connected to.
        OSError, http.client.HTTPException: the connection failed; TimeoutError where the deadline has passed.
    """
    plain, link = None, http.client.HTTPConnection(url.host, url.port)
    try:
        plain = _connected(url, deadline, allow_private) if proxy is None else proxy.connected(deadline.left_s)
        deadline.watch(plain)
        if proxy is not None:
            proxy.tunnel(plain, url)
        link.sock = _tls(plain, url.host) if url.scheme == "https" else plain
        yield link
        if deadline.passed:  # to http.client a cut connection is the end of the headers, or of a body without a length
            raise TimeoutError
    except (OSError, http.client.HTTPException, ValueError) as error:
        if deadline.passed or isinstance(error, TimeoutError):  # the socket's own clock may be the first to ring
            raise TimeoutError(f"it took longer than {deadline.seconds:g} s") from None
        raise
    finally:
        deadline.lift()
        link.close()
        if plain is not None:
            plain.close()


def one_line(text: str) -> str:
    """A line of what somebody else wrote, without secrets, for a message."""
    line = conceal(" ".join("".join(c if c.isprintable() else " " for c in text).split()))
    return line if len(line) <= 400 else f"{line[:400]}…"


def _connected(url: ServiceUrl, deadline: Deadline, allow_private: bool) -> socket.socket:
    ips = addresses(url, allow_private=allow_private)
    return socket.create_connection((str(ips[0]), url.port), timeout=deadline.left_s)


def _cut(handle: socket.socket, over: threading.Event) -> None:
    over.set()
    try:
        handle.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # it has ended by itself


def _tls(plain: socket.socket, host: str) -> socket.socket:
    """TLS for the name in the URL, whose certificate is checked, over a connection to the judged address."""
    return ssl.create_default_context().wrap_socket(plain, server_hostname=host)
