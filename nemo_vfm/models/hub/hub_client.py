"""Sends GET requests to a hub, with limits on time and size, retries, and the token for the hub's host only.

`HubAccess` decides which hub to contact, which redirects to follow, and which host receives the token.
"""

import http.client
import json
import os
import re
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from urllib.parse import urljoin, urlsplit

from nemo_vfm.core.errors import DataError, NemoVfmError, UserError
from nemo_vfm.core.log import warn
from nemo_vfm.core.network.http_connection import Deadline, connection, one_line
from nemo_vfm.core.network.https_proxy import proxy_for
from nemo_vfm.core.network.permission import Permissions
from nemo_vfm.core.network.retry import RETRIED, RetryableError, retry_after, wait_s
from nemo_vfm.core.network.ssrf_guard import ServiceUrl, service_url
from nemo_vfm.core.secret import key_of
from nemo_vfm.core.types.json_value import Json

#: The usual environment variables: the hub's URL, the token, and offline mode.
ENDPOINT, TOKEN, OFFLINE = "HF_ENDPOINT", "HF_TOKEN", "HF_HUB_OFFLINE"
_DEFAULT = "https://huggingface.co"
_LONGEST_URL = 8192
_MAX_REDIRECTS = 5
_NEXT = re.compile(r'<([!-;=?-~]+)>\s*;[^,<>]*\brel="?next"?')


class HubError(NemoVfmError):
    """All attempts to reach the hub failed; running the command again resumes the download."""


@dataclass(frozen=True, slots=True)
class HubAccess:
    """The network access that the user grants `nemo-vfm get`."""

    url: ServiceUrl  #: of the hub
    private: bool = False  #: whether the hub may be on this machine or its local network
    variable: str | None = None  #: environment variable that holds the token; None sends no token
    #: further hosts, from options and the user's endpoints file
    permissions: Permissions = field(default_factory=Permissions)

    def token(self) -> str | None:
        """Return the token. Only the hub's own host receives it, and output conceals it."""
        try:
            return None if self.variable is None else key_of(self.variable)
        except ValueError as error:
            raise UserError(str(error)) from None

    def may_be_private(self, url: ServiceUrl) -> bool:
        """Return whether the hub or a redirect target may be on this machine or its local network."""
        if url.origin == self.url.origin:
            return self.private
        return any(one.private for one in self.permissions.allowed if one.place == url.origin)

    def follow_redirect(self, url: ServiceUrl, location: str | None) -> ServiceUrl:
        """Return the target of a redirect."""
        if not location or len(location) > _LONGEST_URL:
            raise DataError(f"{url.origin} redirects without a valid Location header")
        try:
            text = urljoin(f"{url.origin}{url.path}", location)
            parts = urlsplit(text)
            if not re.fullmatch(r"[\x21-\x7e]+", text):
                raise ValueError("a URL must not contain these characters")
            found = service_url(f"{parts.scheme}://{parts.netloc}")
            target = replace(found, path=parts.path or "/", query=parts.query)
        except ValueError:
            raise DataError(f"{url.origin} redirects to something that is not the URL of a host; it was not "
                            "followed") from None  # fmt: skip
        # Its IP address is checked when connecting.
        if target.origin not in (self.url.origin, *(one.place for one in self.permissions.allowed)):
            is_short = "." not in target.host and ":" not in target.host
            if target.scheme != "https" or is_short:
                raise DataError(f"{url.origin} redirects to {target.origin}, which was not followed because it is "
                                "not https to a public host; if you trust it, add --allow-host "
                                f"{target.origin}")  # fmt: skip
        return target


def hub_access(permissions: Permissions) -> HubAccess:
    """Return access to the hub that the environment names, or to the default hub."""
    if os.environ.get(OFFLINE, "").strip().upper() in ("1", "ON", "YES", "TRUE"):
        raise UserError(f"{OFFLINE} is set, so nothing is downloaded; unset it to download a model")
    endpoint = os.environ.get(ENDPOINT, "").strip()
    try:
        url = service_url(endpoint or _DEFAULT)
    except ValueError as error:
        raise UserError(f"{ENDPOINT}: {error}") from None
    if url.query:
        raise UserError(
            f"{ENDPOINT}: the URL of a hub must not have a query; expected https://HOST or https://HOST/PATH"
        )
    entry = next((one for one in permissions.allowed if one.place == url.origin), None)
    try:
        is_loopback = url.host == "localhost" or ip_address(url.host).is_loopback
    except ValueError:
        is_loopback = False
    if url.scheme == "http" and not is_loopback and entry is None:
        raise UserError(f"{ENDPOINT} names {url.origin}, but over http anyone on the path can alter the data: use "
                        f"https, or add --allow-host {url.origin} if it is in your network")  # fmt: skip
    # The variable that the user names for this host, else HF_TOKEN if the connection keeps it secret.
    is_secret = bool(os.environ.get(TOKEN, "").strip()) and (url.scheme == "https" or is_loopback)
    variable = entry.variable if entry is not None else None
    return HubAccess(url, bool(endpoint) or (entry is not None and entry.private),
                     variable or (TOKEN if is_secret else None), permissions)  # fmt: skip


@dataclass(frozen=True, slots=True)
class HubResponse:
    """A response whose body is not read yet."""

    response: http.client.HTTPResponse  #: from the host that serves the bytes
    host: str  #: origin of that host, for messages

    def read(self, most: int) -> bytes:
        """Read up to `most` bytes of the body; return no bytes at its end."""
        with _retry_connection_errors():
            return self.response.read1(most)


class HubClient:
    """A client of a hub that uses one connection at a time.

    Args:
        access: the hub, and what the user allows.
        timeout_s: longest wait for the headers, and for each block of the body.
        tries: attempts in a row before giving up; broken connections and statuses 408, 429 and 5xx are retried.
        max_wait_s: longest wait between two attempts, also if Retry-After asks for more.
    """

    def __init__(
        self, access: HubAccess, *, timeout_s: float = 30.0, tries: int = 6, max_wait_s: float = 300.0
    ) -> None:
        self.access, self.timeout_s, self.tries, self.max_wait_s = access, timeout_s, tries, max_wait_s

    def json(self, what: str, target: str, max_bytes: int) -> tuple[Json, str | None, int]:
        """Request JSON of at most so many bytes; `target` is path and query below the hub's URL.

        Returns:
            The value, the target of the next page (None after the last), and the response's length in bytes.
        """
        for number in range(self.tries):
            try:
                return self._json_once(target, max_bytes)
            except RetryableError as error:
                self.pause(number, error, what)
        raise AssertionError("pause raises after the last attempt")

    def pause(self, number: int, error: RetryableError, what: str) -> None:
        if number + 1 >= self.tries:
            raise HubError(f"{one_line(what)} failed after {self.tries} attempts; last error: {error}; run the same "
                           "command again to resume")  # fmt: skip
        seconds = wait_s(number, error.wait_s, self.max_wait_s)
        warn(f"{one_line(what)}: {error}; retrying in {seconds:.0f} s")
        time.sleep(seconds)

    @contextmanager
    def get(
        self, target: str, headers: Mapping[str, str], check: Callable[[http.client.HTTPMessage], None] | None = None
    ) -> Iterator[HubResponse]:
        """Send one GET request and follow the redirects that the user permits.

        Args:
            target: path and query below the hub's URL.
            headers: additional headers.
            check: called with the headers of the hub's own responses, before a redirect is followed.

        Raises:
            RetryableError: the request may be retried.
        """
        hub, (path, _, query) = self.access.url, target.partition("?")
        url, token = replace(hub, path=f"{hub.path}{path}", query=query), self.access.token()
        with ExitStack() as stack:
            for _ in range(_MAX_REDIRECTS + 1):
                stack.close()
                token = token if url.origin == self.access.url.origin else None  # never sent again after another host
                with _retry_connection_errors():
                    response = stack.enter_context(self._request(url, headers, token))
                if check is not None and response.status < 400 and url.origin == self.access.url.origin:
                    check(response.headers)
                if not 300 <= response.status < 400:
                    self._check_status(response, url)
                    yield HubResponse(response, url.origin)
                    return
                url = self.access.follow_redirect(url, response.headers.get("Location"))
        raise DataError(f"{self.access.url.origin} redirects more than {_MAX_REDIRECTS} times")

    @contextmanager
    def _request(
        self, url: ServiceUrl, more: Mapping[str, str], token: str | None
    ) -> Iterator[http.client.HTTPResponse]:
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
            deadline.cancel()  # a large body may take long; the socket's timeout limits each block
            if deadline.expired:
                raise TimeoutError
            if response.headers.get("Content-Encoding", "identity").strip().lower() != "identity":
                raise DataError(f"{url.origin} sent a compressed response, which was not requested; it was "
                                "discarded")  # fmt: skip
            yield response

    def _check_status(self, response: http.client.HTTPResponse, url: ServiceUrl) -> None:
        status, hub = response.status, url.origin == self.access.url.origin
        if status in (200, 206, 416):
            return
        code = one_line(response.headers.get("X-Error-Code", ""))[:40]
        if status in RETRIED or not hub:  # a signed link may have expired; the hub issues a new one
            raise RetryableError(f"{url.origin} answered {status}", retry_after(response.headers.get("Retry-After")))
        if status in (401, 403):
            hint = ("the model does not exist, is private or requires that you accept its terms; accept them on its "
                    f"page and set {TOKEN} to your token")  # fmt: skip
            if self.access.variable is not None:
                hint = (f"the token in {self.access.variable} may not read this model, or the model does not exist; "
                        "accept its terms on its page with this token's account")  # fmt: skip
            raise UserError(f"{url.origin} answered {status} {code}".rstrip() + f": {hint}")
        if status == 404:
            raise UserError(f"{url.origin} has no such model, revision or file (404 {code}".rstrip() + "); check the "
                            "name, and the revision after @")  # fmt: skip
        raise DataError(f"{url.origin} answered {status} {code}".rstrip() + ", which is not a response of a hub")

    def _json_once(self, target: str, max_bytes: int) -> tuple[Json, str | None, int]:
        with self.get(target, {"Accept": "application/json"}) as reply:
            if reply.response.status != 200:
                raise DataError(f"{reply.host} answered {reply.response.status} to a request without a range")
            data, start_s = bytearray(), time.monotonic()
            while len(data) <= max_bytes and (part := reply.read(min(1 << 16, max_bytes + 1))):
                data += part
                if time.monotonic() - start_s > 4 * self.timeout_s:
                    raise RetryableError(f"{reply.host} sends its response too slowly")
            if len(data) > max_bytes:
                raise DataError(f"{reply.host} sent more than {max_bytes:,} bytes; the rest was not read")
            if reply.response.length:
                raise RetryableError(f"{reply.host} closed the connection before the end of its response")
            try:
                found = json.loads(bytes(data))
            except (ValueError, RecursionError):
                raise DataError(f"{reply.host} sent a response that is not JSON: is it a hub?") from None
            # The next page has the same path with a new query; the link's host is ignored.
            link, path = _NEXT.search(reply.response.headers.get("Link") or ""), target.partition("?")[0]
            if link is None:
                return found, None, len(data)
            parts = urlsplit(link[1])
            if not parts.path.endswith(path):
                raise DataError("the hub's link to the next page of its listing has another path")
            return found, f"{path}?{parts.query}", len(data)


@contextmanager
def _retry_connection_errors() -> Iterator[None]:
    """Turn broken connections and timeouts into RetryableError; errors of ours pass unchanged."""
    try:
        yield
    except NemoVfmError:
        raise
    except ssl.SSLCertVerificationError as error:
        raise UserError(f"the certificate is not trusted ({one_line(error.verify_message)}); if your network has "
                        "its own certificate authority, set SSL_CERT_FILE to its file") from None  # fmt: skip
    except (OSError, http.client.HTTPException) as error:
        raise RetryableError(one_line(f"{type(error).__name__}: {error}")) from None
