# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Sends GET requests to a hub: limited in time and size, tried again a few times, with the token for its host alone."""

import http.client
import json
import re
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import urlsplit

from nemo_vfm.core.errors import DataError, NemoVfmError, UserError
from nemo_vfm.core.log import warn
from nemo_vfm.core.network.http_connection import Deadline, connection, one_line
from nemo_vfm.core.network.https_proxy import proxy_for
from nemo_vfm.core.network.retry import RETRIED, TryAgain, retry_after, wait_s
from nemo_vfm.core.network.ssrf_guard import ServiceUrl
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.models.hub.hub_access import TOKEN, HubAccess

T = TypeVar("T")
_MOST_REDIRECTS = 5
_NEXT = re.compile(r'<([!-;=?-~]+)>\s*;[^,<>]*\brel="?next"?')


class HubError(NemoVfmError):
    """The hub did not answer as it should in all tries; the same command goes on later."""


@dataclass(frozen=True, slots=True)
class HubResponse:
    """An answer whose body is still to be read.

    Args:
        response: of the host that gives the bytes.
        host: that host, for messages.
    """

    response: http.client.HTTPResponse
    host: str

    @property
    def length(self) -> int | None:
        """Bytes of the body as its header says; None where it says nothing."""
        return self.response.length

    def read(self, most: int) -> bytes:
        """Some bytes of the body, as they come; none at its end.

        Raises:
            TryAgain: the connection broke.
        """
        with _broken_is_tried_again():
            return self.response.read1(most)


class HubClient:
    """A hub that is asked, one connection at a time.

    Args:
        access: which hub, and what the user allows.
        timeout_s: longest wait for the beginning of an answer, and for each piece of it.
        tries: how often in a row one thing may fail: a connection, or the statuses 408, 429 and 5xx.
        max_wait_s: longest wait between two tries, whatever the hub's Retry-After says.
    """

    def __init__(
        self, access: HubAccess, *, timeout_s: float = 30.0, tries: int = 6, max_wait_s: float = 300.0
    ) -> None:
        self.access, self.timeout_s, self.tries, self.max_wait_s = access, timeout_s, tries, max_wait_s

    def json(self, what: str, target: str, most_bytes: int) -> tuple[Json, str | None, int]:
        """Ask for JSON.

        Args:
            what: is asked for, in words.
            target: path and query below the hub's address.
            most_bytes: a longer answer is refused.

        Returns:
            The value, the target of the next page (None after the last), and the answer's length in bytes.

        Raises:
            UserError: the hub refuses us, or has no such thing.
            DataError: the answer is too long, or no JSON.
            HubError: no answer in all tries.
        """
        return self.tried(lambda: self._json_once(target, most_bytes), what)

    def tried(self, once: Callable[[], T], what: str) -> T:
        """Call until it works, or no try is left.

        Raises:
            HubError: it fails every time.
        """
        for number in range(self.tries):
            try:
                return once()
            except TryAgain as error:
                self.pause(number, error, what)
        raise AssertionError("pause raises after the last try")

    def pause(self, number: int, error: TryAgain, what: str) -> None:
        """Wait before the next try.

        Args:
            number: of the tries that failed in a row, from 0.
            error: of the last one.
            what: was asked for.

        Raises:
            HubError: none is left.
        """
        if number + 1 >= self.tries:
            raise HubError(f"{one_line(what)} did not come in {self.tries} tries; the last error: {error}; run the "
                           "same command again to go on")  # fmt: skip
        seconds = wait_s(number, error.wait_s, self.max_wait_s)
        warn(f"{one_line(what)}: {error}; trying again in {seconds:.0f} s")
        time.sleep(seconds)

    @contextmanager
    def get(
        self, target: str, headers: Mapping[str, str], check: Callable[[http.client.HTTPMessage], None] | None = None
    ) -> Iterator[HubResponse]:
        """One try to get something; redirects are followed where the user's permissions allow it.

        Args:
            target: path and query below the hub's address.
            headers: more of them.
            check: looks at the headers of the hub's own answers, before a redirect is followed.

        Raises:
            UserError: the hub refuses us, or has no such thing.
            DataError: it redirects to where nobody may follow, or sends what was not asked for.
            TryAgain: it is worth another try.
        """
        url, token = self._url(target), self.access.token()
        with ExitStack() as stack:
            for _ in range(_MOST_REDIRECTS + 1):
                stack.close()
                token = token if url.origin == self.access.url.origin else None  # once elsewhere, it never comes back
                with _broken_is_tried_again():
                    response = stack.enter_context(self._asked(url, headers, token))
                if check is not None and response.status < 400 and url.origin == self.access.url.origin:
                    check(response.headers)
                if not 300 <= response.status < 400:
                    self._judge(response, url)
                    yield HubResponse(response, url.origin)
                    return
                url = self.access.redirected(url, response.headers.get("Location"))
        raise DataError(f"{self.access.url.origin} redirects more than {_MOST_REDIRECTS} times")

    @contextmanager
    def _asked(self, url: ServiceUrl, more: Mapping[str, str], token: str | None) -> Iterator[http.client.HTTPResponse]:
        headers = {"Host": url.authority, "User-Agent": "nemo_vfm", "Accept-Encoding": "identity",
                   "Connection": "close", **more}  # fmt: skip
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        deadline = Deadline(self.timeout_s)
        private, proxy = self.access.may_be_private(url), proxy_for(url)
        with connection(url, deadline, allow_private=private, proxy=proxy) as link:
            link.request("GET", url.path + (f"?{url.query}" if url.query else ""), headers=headers)
            link.sock.settimeout(self.timeout_s)
            response = link.getresponse()
            deadline.lift()  # a body of gigabytes takes its time; each piece of it has the socket's own limit
            if deadline.passed:
                raise TimeoutError
            if response.headers.get("Content-Encoding", "identity").strip().lower() != "identity":
                raise DataError(f"{url.origin} sends a compressed answer, which was not asked for; nothing of it is "
                                "kept")  # fmt: skip
            yield response

    def _judge(self, response: http.client.HTTPResponse, url: ServiceUrl) -> None:
        status, hub = response.status, url.origin == self.access.url.origin
        if status in (200, 206, 416):
            return
        code = one_line(response.headers.get("X-Error-Code", ""))[:40]
        if status in RETRIED or not hub:  # a signed link of another host may have run out; the hub gives a new one
            raise TryAgain(f"{url.origin} answered {status}", retry_after(response.headers.get("Retry-After")))
        if status in (401, 403):
            raise UserError(f"{url.origin} answered {status} {code}".rstrip() + f": {self._refused()}")
        if status == 404:
            raise UserError(f"{url.origin} has no such model, revision or file (404 {code}".rstrip() + "); check the "
                            "name, and what stands behind @")  # fmt: skip
        raise DataError(f"{url.origin} answered {status} {code}".rstrip() + ", which nobody expected of a hub")

    def _refused(self) -> str:
        """What the user can do."""
        if self.access.variable is None:
            return ("the model does not exist, is private, or asks you to accept its terms; accept them on its page, "
                    f"and put your token into the variable {TOKEN}")  # fmt: skip
        return (f"the token in {self.access.variable} may not read this model, or there is none; accept the model's "
                "terms on its page with the account of this token")  # fmt: skip

    def _json_once(self, target: str, most_bytes: int) -> tuple[Json, str | None, int]:
        with self.get(target, {"Accept": "application/json"}) as answer:
            if answer.response.status != 200:
                raise DataError(f"{answer.host} answered {answer.response.status} to a question without a range")
            data, began = bytearray(), time.monotonic()
            while len(data) <= most_bytes and (part := answer.read(min(1 << 16, most_bytes + 1))):
                data += part
                if time.monotonic() - began > 4 * self.timeout_s:
                    raise TryAgain(f"{answer.host} sends its answer too slowly")
            if len(data) > most_bytes:
                raise DataError(f"{answer.host} answers with more than {most_bytes:,} bytes; the rest was not read")
            if answer.length:
                raise TryAgain(f"{answer.host} ended the connection before its answer was whole")
            return _json(bytes(data), answer.host), _next(target, answer.response.headers.get("Link")), len(data)

    def _url(self, target: str) -> ServiceUrl:
        url = self.access.url
        path, _, query = target.partition("?")
        return ServiceUrl(url.scheme, url.host, url.port, f"{url.path}{path}", query)


@contextmanager
def _broken_is_tried_again() -> Iterator[None]:
    """Broken connections and time-outs are worth another try; what somebody said on purpose is not."""
    try:
        yield
    except NemoVfmError:
        raise
    except ssl.SSLCertVerificationError as error:
        raise UserError(f"the certificate is not trusted ({one_line(error.verify_message)}); if your network has "
                        "an authority of its own, name its file in SSL_CERT_FILE") from None  # fmt: skip
    except (OSError, http.client.HTTPException) as error:
        raise TryAgain(one_line(f"{type(error).__name__}: {error}")) from None


def _next(target: str, link: str | None) -> str | None:
    """The target of the next page: the same path with another query, whatever host the link names."""
    found = _NEXT.search(link or "")
    if found is None:
        return None
    path, parts = target.partition("?")[0], urlsplit(found[1])
    if not parts.path.endswith(path):
        raise DataError("the hub names something else as the next page of its listing")
    return f"{path}?{parts.query}"


def _json(data: bytes, host: str) -> Json:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise DataError(f"{host} answers with something that is not JSON: is it a hub?") from None
