"""Reads the body of a request as a JSON object, within bounds on its size and time."""

import asyncio
import json
from functools import partial
from typing import NoReturn

from starlette.requests import Request

from nemo_vfm.core.types.json_value import Json
from nemo_vfm.serve.openai_api.api_error import ApiError
from nemo_vfm.serve.openai_api.reading_threads import ReadingThreads

BODY_TIMEOUT_S = 60.0


async def json_body(request: Request, most_bytes: int, threads: ReadingThreads) -> dict[str, Json]:
    """The object; `request.state.num_bytes` is its length from then on."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":  # a page in a browser may send anything else without asking first
        raise ApiError(415, f"the body must be application/json, got {kind[:60] or 'no Content-Type'}")
    try:
        data = await asyncio.wait_for(_limited(request, most_bytes), BODY_TIMEOUT_S)
    except TimeoutError:
        raise ApiError(408, f"the body did not arrive within {BODY_TIMEOUT_S:.0f} s") from None
    request.state.num_bytes = len(data)
    return await threads.run(request, partial(_parsed, data))


def _parsed(data: bytes) -> dict[str, Json]:
    try:
        found = json.loads(data, parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise ApiError(400, "the body is not JSON in UTF-8") from None
    if not isinstance(found, dict):
        raise ApiError(400, "the body must be a JSON object")
    return found


async def _limited(request: Request, most_bytes: int) -> bytes:
    told = request.headers.get("content-length", "0")
    parts, size = [], int(told) if told.isdigit() and len(told) < 19 else 0
    if size <= most_bytes:
        size = 0
        async for part in request.stream():
            parts.append(part)
            if (size := size + len(part)) > most_bytes:
                break
    if size > most_bytes:
        raise ApiError(413, f"the body is longer than {most_bytes:,} bytes; send fewer prompts at once",
                       headers={"Connection": "close"})  # fmt: skip
    return b"".join(parts)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
