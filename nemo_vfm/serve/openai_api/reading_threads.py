"""Reads the texts of requests on four threads, and only for clients that are still there."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from starlette.requests import Request

from nemo_vfm.core.types.json_value import Json
from nemo_vfm.serve.openai_api.api_error import ApiError
from nemo_vfm.serve.openai_api.event_stream import unless_gone

_SHORT_BYTES = 1 << 16
_CHARACTERS_PER_TOKEN = 8  # prose has about four; more than eight in the mean are no text for a tokenizer
Result = TypeVar("Result")


class ReadingThreads:
    """Three threads for long requests, and one for short ones, which thus never wait for long ones."""

    def __init__(self) -> None:
        self._long, self._short = ThreadPoolExecutor(3, "long-requests"), ThreadPoolExecutor(1, "short-requests")

    async def run(self, request: Request, work: Callable[[], Result]) -> Result:
        """The result of some work, which is left out if the client hangs up before it has begun.

        Args:
            request: whose client is watched, and whose body has `request.state.num_bytes`.
            work: takes at most about a second; requests that wait take turns between such pieces.
        """
        pool = self._short if request.state.num_bytes <= _SHORT_BYTES else self._long
        return await unless_gone(request.receive, asyncio.get_running_loop().run_in_executor(pool, work))


def require_readable(value: Json, context: int, field: str) -> None:
    """Refuse a text that is too long for the model in any case, before a tokenizer reads it.

    Args:
        value: a text, or messages: names and numbers in them count, too.
        context: of the model, in tokens.
        field: of the request.
    """
    most, count, waiting = _CHARACTERS_PER_TOKEN * context, 0, [value]
    while waiting and count <= most:
        one = waiting.pop()
        if isinstance(one, dict):
            waiting += [*one.keys(), *one.values()]
        elif isinstance(one, list):
            waiting += one
        count += len(one) if isinstance(one, str) else 1 if isinstance(one, dict | list) else len(str(one))
    if count > most:
        raise ApiError(400, f"{field} has more than {most:,} characters, {_CHARACTERS_PER_TOKEN} for each of the "
                            f"{context:,} tokens of the model's context; shorten it", param=field)  # fmt: skip
