"""Reads requests on threads, and brings their answers from the engine to their clients, as long as these are there."""

import asyncio
import json
import re
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from nemo_vfm.core.types.json_value import Json
from nemo_vfm.serve.answer_text import ChoiceWriter, Piece
from nemo_vfm.serve.continuous.batch_engine import ServedText
from nemo_vfm.serve.continuous.engine_thread import EngineThread, QueueFull
from nemo_vfm.serve.continuous.text_request import TextListener, TextRequest
from nemo_vfm.serve.openai_api.api_error import ApiError
from nemo_vfm.serve.openai_api.request_fields import SamplingFields
from nemo_vfm.serve.served_model import ServedModel

Result = TypeVar("Result")
_SHORT_BYTES = 1 << 16
_CHARACTERS_PER_TOKEN = 8  # prose has about four; more than eight in the mean are no text for a tokenizer
REQUEST_ID = "x-request-id"
_SAFE = re.compile(r"[A-Za-z0-9._:-]{1,128}")


class ClientGone(Exception):
    """Nobody waits for the answer any more."""


async def unless_gone(receive: Receive, work: Awaitable[Result]) -> Result:
    """The result of some work, which is cancelled once the client hangs up."""

    async def hang_up() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    working, watching = asyncio.ensure_future(work), asyncio.ensure_future(hang_up())
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGone
        return working.result()
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


class ReadingThreads:
    """Three threads for long requests, and one for short ones, which thus never wait for long ones."""

    def __init__(self) -> None:
        self._long, self._short = ThreadPoolExecutor(3, "long-requests"), ThreadPoolExecutor(1, "short-requests")

    async def run(self, request: Request, work: Callable[[], Result]) -> Result:
        """The result of some work, which is left out if the client hangs up before it has begun.

        The body has `request.state.num_bytes`. Work takes at most about a second; requests that wait take turns.
        """
        pool = self._short if request.state.num_bytes <= _SHORT_BYTES else self._long
        return await unless_gone(request.receive, asyncio.get_running_loop().run_in_executor(pool, work))


class ApiEndpoint:
    """What the paths that answer requests have in common."""

    def __init__(self, served: ServedModel, engine: EngineThread, threads: ReadingThreads) -> None:
        self.served, self.engine, self.threads = served, engine, threads

    def require_readable(self, value: Json, field: str) -> None:
        """Refuse a text that is too long for the model in any case, before a tokenizer reads it.

        Of messages, names and numbers count, too.
        """
        most, count, waiting = _CHARACTERS_PER_TOKEN * self.served.context, 0, [value]
        while waiting and count <= most:
            one = waiting.pop()
            if isinstance(one, dict):
                waiting += [*one.keys(), *one.values()]
            elif isinstance(one, list):
                waiting += one
            count += len(one) if isinstance(one, str) else 1 if isinstance(one, dict | list) else len(str(one))
        if count > most:
            raise ApiError(400, f"{field} has more than {most:,} characters, {_CHARACTERS_PER_TOKEN} for each of the "
                                f"{self.served.context:,} tokens of the model's context; shorten it",
                           param=field)  # fmt: skip

    def require_places(self, longest: int, max_tokens: int) -> None:
        """Refuse a prompt that leaves no place in the model's context for so many new tokens."""
        if longest + max_tokens > self.served.context:
            raise ApiError(400, f"a prompt of {longest:,} tokens and max_tokens {max_tokens:,} exceed the model's "
                                f"context of {self.served.context:,} tokens; shorten either",
                           param="max_tokens")  # fmt: skip

    def require_countable(self, count: int, param: str = "prompt") -> None:
        """Refuse a request that no queue of this server would ever take."""
        most = self.engine.max_waiting
        if most is not None and count > most:
            raise ApiError(400, f"a request for {count:,} texts (prompts times n) is longer than the queue of "
                                f"{most:,}; send several", param=param)  # fmt: skip

    def admit(
        self, texts: Sequence[tuple[TextRequest, TextListener]], advice: str, param: str
    ) -> list[ServedText]:  # fmt: skip
        """Texts that the engine has taken; the error for one that is too long names `param` and gives advice."""
        try:
            return self.engine.submit(texts)
        except QueueFull as error:
            raise ApiError(429, str(error), headers={"Retry-After": str(error.retry_after_s)}) from None
        except ValueError as error:
            raise ApiError(400, f"{error}; {advice}", param=param) from None

    def head(self, request: Request, prefix: str, kind: str) -> tuple[dict[str, str], dict[str, Json]]:
        """(headers of an answer, the fields that it and every part of a stream begin with).

        A request's own name, in X-Request-Id, is repeated.
        """
        given = request.headers.get(REQUEST_ID, "")
        name = given if _SAFE.fullmatch(given) else secrets.token_hex(16)
        return {REQUEST_ID: name}, {
            "id": f"{prefix}-{name}", "object": kind, "created": int(time.time()), "model": self.served.name,
            "system_fingerprint": self.served.revision or None,
        }  # fmt: skip


def usage(num_prompt: int, num_new: int) -> dict[str, int]:
    """Numbers of tokens; a prompt with several choices counts once."""
    return {"prompt_tokens": num_prompt, "completion_tokens": num_new, "total_tokens": num_prompt + num_new}


@dataclass(frozen=True, slots=True)
class AnswerPlan:
    """What a request makes of the model, and how it is answered."""

    texts: tuple[TextRequest, ...]  #: one for each choice
    fields: SamplingFields  #: of the request
    num_prompt: int  #: tokens of its prompts
    prefix: str  #: of the answer's name
    kind: str  #: of the answer, or of each part of a stream
    #: writes (a choice's number, a part of it, whether it is the first)
    choice: Callable[[int, Piece, bool], dict[str, Json]]
    split_thoughts: bool = False  #: whether a piece has its thought apart from its text


class ChoicesResponse(Response):
    """The choices of one request: one body, or server-sent events, each a line of JSON, of which the last says [DONE].

    What still runs is cancelled at the end, also where the client has hung up before anything was sent.
    """

    def __init__(self, endpoint: ApiEndpoint, plan: AnswerPlan, request: Request) -> None:
        served, self._engine = endpoint.served, endpoint.engine
        self._names, self._head = endpoint.head(request, plan.prefix, plan.kind)
        super().__init__(None, headers=self._names)
        self._plan, self._loop = plan, asyncio.get_running_loop()
        self._pieces: asyncio.Queue[tuple[int, Piece]] = asyncio.Queue()
        self._counts: dict[int, int] = {}  # tokens of each choice so far
        writers = [
            ChoiceWriter(served.decode, text.tokens, plan.fields.stop, partial(self._publish, number),
                         in_pieces=plan.fields.stream,
                         split=served.thought_split(text.tokens) if plan.split_thoughts else None)
            for number, text in enumerate(plan.texts)
        ]  # fmt: skip
        pairs = list(zip(plan.texts, writers, strict=True))
        self._texts = endpoint.admit(pairs, "ask for fewer tokens (max_tokens)", "max_tokens")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it; a client that is gone ends a stream in silence."""
        try:
            if self._plan.fields.stream:
                with suppress(ClientGone):
                    await unless_gone(receive, self._send_events(send))
            else:
                body = await unless_gone(receive, self._body())
                await JSONResponse(body, headers=self._names)(scope, receive, send)
        finally:
            self._engine.cancel([text for text in self._texts if not text.ended])

    def _publish(self, number: int, piece: Piece) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._pieces.put_nowait, (number, piece))

    async def _choices(self) -> AsyncIterator[dict[str, Json]]:
        """Every part of every choice as it comes."""
        missing, choice = len(self._texts), self._plan.choice
        while missing:
            number, piece = await self._pieces.get()
            if piece.ending in ("failed", "cancelled"):
                raise ApiError(500, "the model has failed on this text; the server's log says why")
            missing -= piece.ending is not None
            is_first = number not in self._counts
            self._counts[number] = piece.num_tokens
            # The first part may begin with the prompt, which takes a while to write.
            yield await asyncio.to_thread(choice, number, piece, True) if is_first else choice(number, piece, False)

    async def _body(self) -> dict[str, Json]:
        choices = sorted([one async for one in self._choices()], key=lambda one: one["index"])
        tokens = usage(self._plan.num_prompt, sum(self._counts.values()))
        return {**self._head, "choices": choices, "usage": tokens}

    async def _send_events(self, send: Send) -> None:
        async def event(text: str) -> None:
            data = f"data: {text}\n\n".encode(errors="replace")
            await send({"type": "http.response.body", "body": data, "more_body": True})

        headers = {"Cache-Control": "no-store", "Content-Type": "text/event-stream; charset=utf-8", **self._names}
        await send({"type": "http.response.start", "status": 200, "headers": Headers(headers).raw})
        try:
            async for choice in self._choices():
                await event(json.dumps({**self._head, "choices": [choice]}, ensure_ascii=False))
            options = self._plan.fields.stream_options
            if options is not None and options.include_usage:
                tokens = usage(self._plan.num_prompt, sum(self._counts.values()))
                await event(json.dumps({**self._head, "choices": [], "usage": tokens}, ensure_ascii=False))
            await event("[DONE]")
        except ApiError as error:  # the status has been sent: clients look for an error among the events, too
            await event(json.dumps(error.body()))
        await send({"type": "http.response.body", "body": b"", "more_body": False})
