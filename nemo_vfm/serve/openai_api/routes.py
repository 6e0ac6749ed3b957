"""Builds the HTTP application: reads the bodies of requests within bounds, and says which path answers what."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from functools import partial
from typing import NoReturn

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from nemo_vfm.core import log
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.serve.continuous.engine_thread import EngineThread
from nemo_vfm.serve.openai_api.answer_stream import ClientGone, ReadingThreads
from nemo_vfm.serve.openai_api.api_error import ApiError
from nemo_vfm.serve.openai_api.chats import Chats
from nemo_vfm.serve.openai_api.completions import Completions
from nemo_vfm.serve.openai_api.http_server import BODY_TIMEOUT_S
from nemo_vfm.serve.openai_api.score_endpoints import Scores
from nemo_vfm.serve.served_model import ServedModel

_Answer = Callable[[dict[str, Json], Request], Awaitable[Response]]
_SCORE_PATHS = ("/v1/score", "/score")  # vLLM's clients use either
_CLIENT_GONE = 499  # nobody reads it


def application(
    served: ServedModel, engine: EngineThread, *, max_body_bytes: int, split_thoughts: bool = False
) -> Starlette:
    """The application, without the guard around it; see `Chats` for split_thoughts."""
    threads = ReadingThreads()

    def post(path: str, answer: _Answer) -> Route:
        async def endpoint(request: Request) -> Response:
            body = await _json_body(request, max_body_bytes, threads)
            _require_model(body, served)
            return await answer(body, request)

        return Route(path, endpoint, methods=["POST"])

    async def models(request: Request) -> Response:
        model = {"id": served.name, "object": "model", "created": 0, "owned_by": "nemo_vfm",
                 "max_model_len": served.context}  # fmt: skip
        if (name := request.path_params.get("name")) is None:
            return JSONResponse({"object": "list", "data": [model]})
        _require_model({"model": name}, served)
        return JSONResponse(model)

    async def health(request: Request) -> Response:
        return JSONResponse({"status": "ok", "texts": engine.num_live(), "free_tokens": engine.free_tokens()})

    def refuse(sentence: str) -> _Answer:
        async def answer(body: dict[str, Json], request: Request) -> Response:
            raise ApiError(404, sentence)

        return answer

    completion: _Answer
    if served.reward is None:
        completion = Completions(served, engine, threads).answer
        chat = Chats(served, engine, threads, split_thoughts=split_thoughts).answer
        score = refuse(f"{served.name} generates text and has no scores; /v1/score needs a reward model")
    else:
        scores = Scores(served, engine, threads)
        chat, score = scores.chat, scores.score
        completion = refuse(f"{served.name} is a reward model and generates no text; use /v1/score or "
                            f"/v1/chat/completions")  # fmt: skip
    return Starlette(
        routes=[
            post("/v1/completions", completion), post("/v1/chat/completions", chat),
            *(post(path, score) for path in _SCORE_PATHS),
            Route("/v1/models", models), Route("/v1/models/{name:path}", models), Route("/health", health),
        ],
        exception_handlers=dict.fromkeys((ApiError, ClientGone, ClientDisconnect, HTTPException, Exception),
        _api_error),
    )  # fmt: skip


def _require_model(body: dict[str, Json], served: ServedModel) -> None:
    name = body.get("model")
    if not isinstance(name, str) or any("\ud800" <= letter <= "\udfff" for letter in name):
        raise ApiError(400, f"model must be a text; this server has {served.name}", param="model")
    if name != served.name:
        raise ApiError(404, f"there is no model {name[:100]} here; this server has {served.name}", param="model")


async def _api_error(request: Request, error: Exception) -> Response:
    match error:
        case ApiError():
            return error.response()
        case ClientGone() | ClientDisconnect():
            return Response(status_code=_CLIENT_GONE)
        case HTTPException():
            paths = "/v1/completions, /v1/chat/completions, /v1/score, /v1/models and /health"
            return ApiError(error.status_code, f"{error.detail}; this server answers {paths}").response()
    log.warn(f"a request to {request.url.path[:100]} has failed: {type(error).__name__}")
    return ApiError(500, "the server has failed on this request; its log says why").response()


async def _json_body(request: Request, max_bytes: int, threads: ReadingThreads) -> dict[str, Json]:
    """The object; `request.state.num_bytes` is its length from then on."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":  # a page in a browser may send anything else without asking first
        raise ApiError(415, f"the body must be application/json, got {kind[:60] or 'no Content-Type'}")
    told = request.headers.get("content-length", "0")
    size, data = int(told) if told.isdigit() and len(told) < 19 else 0, bytearray()
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            if size <= max_bytes:
                async for part in request.stream():
                    data += part
                    if (size := len(data)) > max_bytes:
                        break
    except TimeoutError:
        raise ApiError(408, f"the body did not arrive within {BODY_TIMEOUT_S:.0f} s") from None
    if size > max_bytes:
        raise ApiError(413, f"the body is longer than {max_bytes:,} bytes; send fewer prompts at once",
                       headers={"Connection": "close"})  # fmt: skip
    request.state.num_bytes = len(data)
    return await threads.run(request, partial(_parse_body, data))


def _parse_body(data: bytearray) -> dict[str, Json]:
    def refuse(constant: str) -> NoReturn:
        raise ValueError(f"{constant} is not JSON")

    try:
        found = json.loads(data, parse_constant=refuse)
    except (ValueError, RecursionError):
        raise ApiError(400, "the body is not JSON in UTF-8") from None
    if not isinstance(found, dict):
        raise ApiError(400, "the body must be a JSON object")
    return found
