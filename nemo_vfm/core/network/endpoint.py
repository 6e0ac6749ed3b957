# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Sends JSON requests to a service over HTTP, with limits on time, size and tries.

Built on the standard library's http.client, since the connection must go to an address that was checked
(core/network/ssrf_guard.py). It is kept small. Each request has its own connection, so a late answer is never read as
that of the next request. There are no redirects, proxies, compression or cookies.
"""

import http.client
import json
import os
import random
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from uuid import uuid4

from nemo_vfm.core.errors import NemoVfmError, UserError
from nemo_vfm.core.log import warn_once
from nemo_vfm.core.nested_error import PartRefused
from nemo_vfm.core.network.permission import NOTHING, Allowed, Permissions, Recipient, SentText
from nemo_vfm.core.network.secret import conceal, register
from nemo_vfm.core.network.secret_leak import leaked
from nemo_vfm.core.network.ssrf_guard import ServiceUrl, addresses, service_url
from nemo_vfm.core.types.json_value import Json

#: Every request's own name begins so; it is how an answer to somebody else's question is recognised.
REQUEST_PREFIX = "nemo-vfm-"
_RETRIED = frozenset({408, 429, *range(500, 600)})
_ABOUT_ALL = frozenset({401, 402, 403, 404, 405, 407})
_CHUNK = 1 << 16


class EndpointError(NemoVfmError):
    """A service did not answer one question as it should. Another question may fare better."""


class EndpointDenied(UserError):
    """A service refuses us or has no such model: no question will fare better. The run stops and can go on later."""


class _Again(Exception):
    """Worth another try, perhaps after so many seconds."""

    def __init__(self, reason: str, wait_s: float | None = None) -> None:
        super().__init__(reason)
        self.wait_s = wait_s


@dataclass(frozen=True, slots=True)
class Answer:
    """What a service said.

    Args:
        body: the JSON of it.
        request_id: the name that our question bore.
        echo: the name of a question that the answer bears; None where the service repeats none.
        seconds: from the first try to the answer, waiting between tries included.
    """

    body: Json
    request_id: str
    echo: str | None
    seconds: float


class Endpoint:
    """A service that takes and gives JSON, at a host that the user allows. Give its name or its URL.

    Args:
        name: in the user's endpoints file, which holds address and key (docs/captions.md).
        url: where it is, such as https://host/v1 or http://127.0.0.1:8000/v1, without what names the operation. The
            user allows the host by `--allow-host HOST` or `--allow-host HOST=VARIABLE`, where VARIABLE holds the key.
            Addresses where clouds hand out credentials are refused all the same.
        timeout_s: seconds for one try, from looking up the name to the last byte.
        tries: how often a question is asked at most. Time-outs, broken connections and the statuses 408, 429 and 5xx
            are worth another try, nothing else is.
        max_wait_s: longest wait between two tries, whatever the service's Retry-After says.
        max_response_mb: a longer answer is cut off and refused, in 10^6 bytes.
        permissions: given by whoever composes the recipe, never by a recipe.
    """

    def __init__(
        self, *, name: str | None = None, url: SentText | None = None, timeout_s: float = 120.0, tries: int = 4,
        max_wait_s: float = 30.0, max_response_mb: float = 8.0, permissions: Permissions = NOTHING,
    ) -> None:  # fmt: skip
        if timeout_s <= 0 or tries < 1 or max_wait_s < 0 or max_response_mb <= 0:
            raise ValueError(
                f"timeout_s {timeout_s}, tries {tries}, max_wait_s {max_wait_s} and max_response_mb {max_response_mb}: "
                "each must be above 0, and max_wait_s not below"
            )
        self.allowed, self.url = _allowed(name, url, permissions)
        self.timeout_s, self.tries, self.max_wait_s = timeout_s, tries, max_wait_s
        self.max_response_mb, self._withheld = max_response_mb, permissions.withheld

    def recipients(self) -> tuple[Recipient, ...]:
        """See `Sends.recipients`."""
        variables = () if self.allowed.variable is None else (self.allowed.variable,)
        return (Recipient(self.url.origin, "what it is asked", variables, self.allowed.source),)

    def ready(self) -> None:
        """Judge address and key and ask nothing: the service itself may be started later.

        Raises:
            UserError: the address may not be connected to, its name is not known, or the key is absent.
        """
        if self.allowed.variable is not None:
            self._key()
        try:
            addresses(self.url, allow_private=self.allowed.private)
        except ConnectionError as error:
            raise UserError(f"{error}. Is the URL {self.url} correct?") from None

    def ask(self, operation: str, question: Json) -> Answer:
        """Ask until there is an answer, or no try is left.

        Args:
            operation: what follows the URL, such as `chat/completions`.
            question: the request's body.

        Raises:
            EndpointDenied: the key, the path or the model is refused; asking again would not help.
            EndpointError: no answer to this question, or it holds what the recipe takes from the environment.
            UserError: the address may not be connected to, or the key is absent.
        """
        if variable := leaked(question, self._withheld):
            raise EndpointError(f"a request to {self.url.origin} would hold the value of the variable {variable}, so "
                                "it was not sent; texts that are sent take nothing from the environment")  # fmt: skip
        body = json.dumps(question, ensure_ascii=True, allow_nan=False).encode()
        began, reason = time.monotonic(), ""
        for number in range(self.tries):
            request_id = f"{REQUEST_PREFIX}{uuid4().hex}"
            try:
                found, echo = self._once(operation, body, request_id)
                return Answer(found, request_id, echo, time.monotonic() - began)
            except _Again as error:
                reason = str(error)
                if number + 1 < self.tries:
                    time.sleep(self._wait(number, error.wait_s))
        raise EndpointError(f"{self._name()} gave no answer in {self.tries} tries; the last error: {reason}")

    def _wait(self, number: int, asked_s: float | None) -> float:
        """Twice as long each time, a random part of it; as long as the service asks for, but never above the limit."""
        usual = random.uniform(0.5, 1.0) * 2.0**number
        return min(self.max_wait_s, usual if asked_s is None else max(asked_s, 0.0))

    def _once(self, operation: str, body: bytes, request_id: str) -> tuple[Json, str | None]:
        url = self.url
        path = f"{url.path}/{operation}" + (f"?{url.query}" if url.query else "")
        try:
            with _connection(url, self.timeout_s, self.allowed.private) as link:
                link.request("POST", path, body, self._headers(url, request_id))
                response = link.getresponse()
                data = _body(response, int(self.max_response_mb * 1e6))
        except UserError:
            raise
        except (OSError, http.client.HTTPException) as error:
            raise _Again(_short(f"{type(error).__name__}: {error}")) from None
        self._judge(response, data)
        return _json(data), response.headers.get("X-Request-Id")

    def _judge(self, response: http.client.HTTPResponse, data: bytes) -> None:
        status, excerpt = response.status, _short(data[:2000].decode(errors="replace"))
        if status == 200:
            return
        text = f"{self._name()} answered {status} {response.reason[:40]}: {excerpt or 'nothing more'}"
        if status in _RETRIED:
            raise _Again(_short(text), _retry_after(response.headers.get("Retry-After")))
        if 300 <= status < 400:
            raise EndpointDenied(f"{self._name()} redirects ({status}), and the key must not follow: fix the url")
        if status in _ABOUT_ALL:
            hint = {
                401: "is the key correct?",
                403: "is the key correct?",
                404: "are the URL and the model correct?",
            }.get(status, "")
            raise EndpointDenied(_short(f"{text}. {hint}".strip()))
        raise EndpointError(_short(text))

    def _headers(self, url: ServiceUrl, request_id: str) -> Mapping[str, str]:
        usual = {
            "Host": url.authority, "Content-Type": "application/json", "Accept": "application/json",
            "Accept-Encoding": "identity", "Connection": "close", "X-Request-Id": request_id,
            "User-Agent": "nemo_vfm",
        }  # fmt: skip
        return usual if self.allowed.variable is None else {**usual, "Authorization": f"Bearer {self._key()}"}

    def _key(self) -> str:
        """The key as the environment has it now; it is hidden wherever we write."""
        key = os.environ.get(str(self.allowed.variable), "").strip()
        if not key or not key.isascii() or not key.isprintable():
            what = "is empty or not set" if not key else "contains characters that no key has"
            raise EndpointDenied(f"the variable {self.allowed.variable}, which should hold the key, {what}")
        register(key)
        return key

    def _name(self) -> str:
        return f"the service at {self.url}"


def _allowed(name: str | None, url: str | None, permissions: Permissions) -> tuple[Allowed, ServiceUrl]:
    """What the user says about the service, and where it is."""
    if (name is None) == (url is None):
        raise ValueError("give either `name`, from your endpoints file, or `url`")
    try:
        if name is not None:
            found = permissions.named(name)
            return found, service_url(found.url)
        target = service_url(str(url))
        return permissions.service(target), target
    except ValueError as error:
        raise PartRefused(str(error), "url" if name is None else "name") from None


@contextmanager
def _connection(url: ServiceUrl, timeout_s: float, allow_private: bool) -> Iterator[http.client.HTTPConnection]:
    """A connection to a judged address, which is cut when the time is over, however slowly bytes drip in."""
    deadline = time.monotonic() + timeout_s
    ips = addresses(url, allow_private=allow_private)
    plain = socket.create_connection((str(ips[0]), url.port), timeout=max(0.01, deadline - time.monotonic()))
    handle = plain.dup()  # shutting this one down ends the connection, also when TLS has taken over the other
    over = threading.Event()
    watchdog = threading.Timer(max(0.01, deadline - time.monotonic()), _cut, (handle, over))
    watchdog.daemon = True
    watchdog.start()
    link = http.client.HTTPConnection(url.host, url.port)
    try:
        link.sock = _tls(plain, url.host) if url.scheme == "https" else plain
        yield link
        if over.is_set():  # to http.client a cut connection is the end of the headers, or of a body without a length
            raise TimeoutError
    except (OSError, http.client.HTTPException, ValueError) as error:
        if over.is_set() or isinstance(error, TimeoutError):  # the socket's own clock may be the first to ring
            raise TimeoutError(f"it took longer than timeout_s, {timeout_s:g} s") from None
        raise
    finally:
        watchdog.cancel()
        for open_one in (link, plain, handle):
            open_one.close()


def _cut(handle: socket.socket, over: threading.Event) -> None:
    over.set()
    try:
        handle.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # it has ended by itself


def _tls(plain: socket.socket, host: str) -> socket.socket:
    """TLS for the name in the URL, whose certificate is checked, over a connection to the judged address."""
    return ssl.create_default_context().wrap_socket(plain, server_hostname=host)


def _body(response: http.client.HTTPResponse, limit: int) -> bytes:
    if response.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise EndpointError("the service sent a compressed response, which was not requested")
    declared = response.length or 0
    data = bytearray()
    while declared <= limit and len(data) <= limit and (part := response.read(min(_CHUNK, limit + 1))):
        data += part
    if max(len(data), declared) > limit:
        raise EndpointError(f"the response is longer than max_response_mb, {limit / 1e6:g} MB; the rest was not read")
    if response.length:
        raise http.client.IncompleteRead(bytes(data[:100]), response.length)
    return bytes(data)


def _json(data: bytes) -> Json:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise _Again(f"the response is not JSON: {_short(data[:200].decode(errors='replace'))!r}") from None


def _retry_after(text: str | None) -> float | None:
    """Seconds that the service asks us to wait; None where it says nothing that makes sense."""
    if not text:
        return None
    try:
        seconds = float(text) if text.strip()[:12].replace(".", "", 1).isdigit() else _until(text)
    except (ValueError, TypeError, OverflowError):
        return None
    if seconds > 600:
        warn_once(f"a service asks to wait {seconds:.3g} s; waiting max_wait_s instead")
    return seconds


def _until(text: str) -> float:
    return parsedate_to_datetime(text).timestamp() - time.time()


def _short(text: str) -> str:
    """A line of what somebody else wrote, without secrets, for a message."""
    line = conceal(" ".join("".join(c if c.isprintable() else " " for c in text).split()))
    return line if len(line) <= 400 else f"{line[:400]}…"
