"""Sends JSON requests to a service over HTTP, with limits on time and size.

Built on the standard library's http.client, since the connection must go to an address that was checked
(core/network/ssrf_guard.py). It is kept small. Each request has its own connection, so a late answer is never read as
that of the next request. There are no redirects, proxies, compression or cookies. A request that holds a value of the
environment is not sent: the last line of defence after `check`.
"""

import base64
import http.client
import json
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from uuid import uuid4

from nemo_vfm.core.errors import NemoVfmError, UserError
from nemo_vfm.core.network.http_connection import Deadline, connection, one_line
from nemo_vfm.core.network.permission import NOTHING, Permissions, Recipient, SentText
from nemo_vfm.core.network.retry import RETRIED, retry_after
from nemo_vfm.core.network.ssrf_guard import addresses, service_url
from nemo_vfm.core.secret import forms, is_key, key_of
from nemo_vfm.core.types.component import PartRefused
from nemo_vfm.core.types.json_value import Json

_ABOUT_ALL = frozenset({401, 402, 403, 404, 405, 407})
_BUSY = frozenset({429, 503, 529})
_CHUNK = 1 << 16


class EndpointError(NemoVfmError):
    """A service did not answer one question as it should. Another question may fare better."""


class EndpointBusy(EndpointError):
    """A service takes no more questions just now, by 429, 503 or 529, or by refusing the connection; ask again later.

    Args:
        reason: what it said.
        retry_after_s: the wait that it requests; None if it requests none.
    """

    def __init__(self, reason: str, retry_after_s: float | None = None) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s


class EndpointUnreachable(EndpointBusy):
    """Nobody listens at a service's address: it is restarted, or it was never there."""


class EndpointFault(EndpointError):
    """A service failed on a question that it took: 408, another 5xx, a broken connection or half an answer."""


class EndpointTimeout(EndpointFault):
    """A service took a question and gave no whole answer within `timeout_s`."""


class EndpointDenied(UserError):
    """A service refuses us or has no such model: no question will fare better. The run stops and can go on later."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The HTTP response of a service."""

    body: Json  #: the JSON of it
    request_id: str  #: the name that our question bore
    echo: str | None  #: the name of a question that the answer bears; None where the service repeats none
    seconds: float  #: from the question to the answer


class Endpoint:
    """A service that takes and gives JSON, at a host that the user allows. Give its name or its URL.

    Args:
        name: in the user's endpoints file, which holds address and key (docs/how-to/video/captions.md).
        url: where it is, such as https://host/v1 or http://127.0.0.1:8000/v1, without what names the operation. The
            user allows the host by `--allow-host HOST` or `--allow-host HOST=VARIABLE`, where VARIABLE holds the key.
            Addresses where clouds hand out credentials are refused all the same.
        timeout_s: seconds for one question, from looking up the name to the last byte.
        max_response_mb: a longer answer is cut off and refused, in 10^6 bytes.
        permissions: given by the program that composes the recipe, never by a recipe.
    """

    def __init__(
        self, *, name: str | None = None, url: SentText | None = None, timeout_s: float = 120.0,
        max_response_mb: float = 8.0, permissions: Permissions = NOTHING,
    ) -> None:  # fmt: skip
        if timeout_s <= 0 or max_response_mb <= 0:
            raise ValueError(f"timeout_s {timeout_s} and max_response_mb {max_response_mb} must be above 0")
        if (name is None) == (url is None):
            raise ValueError("give either `name`, from your endpoints file, or `url`")
        try:  # what the user says about the service, and where it is
            if name is not None:
                self.allowed = permissions.find_endpoint(name)
                self.url = service_url(self.allowed.url)
            else:
                self.url = service_url(str(url))
                self.allowed = permissions.service(self.url)
        except ValueError as error:
            raise PartRefused(str(error), "url" if name is None else "name") from None
        self.timeout_s, self.max_response_mb, self._withheld = timeout_s, max_response_mb, permissions.withheld
        self._name = f"the service at {self.url}"

    def recipients(self) -> tuple[Recipient, ...]:
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
        """Ask once; `asking` decides whether and when the same question is asked again.

        Args:
            operation: what follows the URL, such as `chat/completions`.
            question: the request's body.

        Raises:
            EndpointDenied: the key, the path or the model is refused; asking again would not help.
            EndpointBusy: it refuses just now.
            EndpointFault: it failed; the same question may fare better.
            EndpointError: no answer to this question, or it holds what the recipe takes from the environment.
            UserError: the address may not be connected to, or the key is absent.
        """
        body, began_s, request_id = self.encode(question), time.monotonic(), f"{REQUEST_PREFIX}{uuid4().hex}"
        response, data = self._once(operation, body, request_id)
        self._judge(response, data)
        try:
            found = json.loads(data)
        except (ValueError, RecursionError):
            text = repr(one_line(data[:200].decode(errors="replace")))
            raise EndpointFault(f"the response is not JSON: {text}") from None
        return Answer(found, request_id, response.headers.get("X-Request-Id"), time.monotonic() - began_s)

    def encode(self, question: Json) -> bytes:
        """A request's body as it is sent, in ASCII.

        Raises:
            EndpointError: it holds what the recipe takes from the environment.
        """
        if variable := find_leak(question, self._withheld):
            raise EndpointError(f"a request to {self.url.origin} would contain the value of the variable {variable}, "
                                "so it was not sent; sent texts must not contain values from the "
                                "environment")  # fmt: skip
        return json.dumps(question, ensure_ascii=True, allow_nan=False).encode()

    def _once(self, operation: str, body: bytes, request_id: str) -> tuple[http.client.HTTPResponse, bytes]:
        url = self.url
        path = f"{url.path}/{operation}" + (f"?{url.query}" if url.query else "")
        try:
            with connection(url, Deadline(self.timeout_s), allow_private=self.allowed.private) as link:
                headers = {
                    "Host": url.authority, "Content-Type": "application/json", "Accept": "application/json",
                    "Accept-Encoding": "identity", "Connection": "close", "X-Request-Id": request_id,
                    "User-Agent": "nemo_vfm",
                }  # fmt: skip
                if self.allowed.variable is not None:
                    headers["Authorization"] = f"Bearer {self._key()}"
                link.request("POST", path, body, headers)
                response = link.getresponse()
                limit = int(self.max_response_mb * 1e6)
                if response.headers.get("Content-Encoding", "identity").lower() != "identity":
                    raise EndpointError("the service sent a compressed response, which was not requested")
                declared = response.length or 0
                data = bytearray()
                while declared <= limit and len(data) <= limit and (part := response.read(min(_CHUNK, limit + 1))):
                    data += part
                if max(len(data), declared) > limit:
                    raise EndpointError(
                        f"the response is longer than max_response_mb, {limit / 1e6:g} MB; the rest was not read"
                    )
                if response.length:
                    raise http.client.IncompleteRead(bytes(data[:100]), response.length)
                return response, bytes(data)
        except UserError:
            raise
        except TimeoutError:
            raise EndpointTimeout(f"{self._name} took longer than timeout_s, {self.timeout_s:g} s") from None
        except ConnectionRefusedError as error:
            raise EndpointUnreachable(one_line(f"{self._name} cannot be reached: {error}")) from None
        except (OSError, http.client.HTTPException) as error:
            raise EndpointFault(one_line(f"{self._name} failed midway: {type(error).__name__}: {error}")) from None

    def _judge(self, response: http.client.HTTPResponse, data: bytes) -> None:
        status = response.status
        if status == 200:
            return
        excerpt, body = data[:2000].decode(errors="replace"), None
        with suppress(ValueError, RecursionError):
            body = json.loads(data)
        match body:  # the message of OpenAI's form of an error, else all of it
            case {"error": {"message": str(message)}} | {"message": str(message)} if message.strip():
                excerpt = message[:2000]
        text = f"{self._name} answered {status} {response.reason[:40]}: {one_line(excerpt) or 'nothing more'}"
        if status in _BUSY:
            raise EndpointBusy(one_line(text), retry_after(response.headers.get("Retry-After")))
        if status in RETRIED:
            raise EndpointFault(one_line(text))
        if 300 <= status < 400:
            raise EndpointDenied(
                f"{self._name} redirects ({status}), and the key must not be sent there: correct the URL"
            )
        if status in _ABOUT_ALL:
            known = {**dict.fromkeys((401, 403), "is the key correct?"), 404: "are the URL and the model correct?"}
            hint = known.get(status, "")
            raise EndpointDenied(one_line(f"{text}. {hint}".strip()))
        raise EndpointError(one_line(text))

    def _key(self) -> str:
        """The key as the environment has it now; it is hidden wherever we write."""
        try:
            return key_of(str(self.allowed.variable))
        except ValueError as error:
            raise EndpointDenied(str(error)) from None


MIN_LENGTH = 4  # a request that may hold no `1` and no `en` cannot be asked
_WHOLE_WORDS = 8  # shorter values are looked for as whole words: `cat` stands in `location`
#: Words of the protocol, which a user or a machine may be called, too.
_PROTOCOL = frozenset({"user", "system", "assistant", "text", "image_url", "video_url"})
_DATA = re.compile(r"data:[\w/+.-]+;base64,")


def find_leak(question: Json, withheld: Sequence[tuple[str, str]]) -> str:
    """The name of the first variable, of (variable, value), whose value a request holds; empty where it holds none."""
    values = [(name, value.strip()) for name, value in withheld if len(value.strip()) >= MIN_LENGTH]
    patterns = []
    for name, value in values:  # in any of its spellings
        pattern = rf"(?<!\w){re.escape(value)}(?!\w)"
        if len(value) >= _WHOLE_WORDS:
            spelled = {form for form in forms(value) if len(form) >= _WHOLE_WORDS}
            pattern = "|".join(map(re.escape, sorted(spelled, key=len, reverse=True)))
        patterns.append((name, re.compile(pattern, re.IGNORECASE)))
    for text in _texts(question):
        if head := _DATA.match(text):
            data = text[head.end() :].encode(errors="replace")
            with suppress(ValueError):  # the bytes of a picture or a video
                data = base64.b64decode(data, validate=True)
            found = (name for name, value in values if len(value) >= _WHOLE_WORDS and value.encode() in data)
        else:
            found = (name for name, pattern in patterns if text not in _PROTOCOL and pattern.search(text))
        if name := next(found, "that holds a key" if not head and is_key(text) else ""):
            return name
    return ""


def _texts(question: Json) -> Iterator[str]:
    """Every text of a request but the names of its parts."""
    if isinstance(question, dict):
        for value in question.values():
            yield from _texts(value)
    elif isinstance(question, list | tuple):
        for value in question:
            yield from _texts(value)
    elif isinstance(question, str):
        yield question


#: Every request's own name begins so; it is how an answer to somebody else's question is recognised.
REQUEST_PREFIX = "nemo-vfm-"
