"""Builds the HTTP application: which path answers what."""

from collections.abc import Awaitable, Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from nemo_vfm.core import log
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.serve.continuous.engine_thread import EngineThread
from nemo_vfm.serve.openai_api.api_error import ApiError
from nemo_vfm.serve.openai_api.chats import Chats
from nemo_vfm.serve.openai_api.completions import Completions
from nemo_vfm.serve.openai_api.event_stream import ClientGone
from nemo_vfm.serve.openai_api.reading_threads import ReadingThreads
from nemo_vfm.serve.openai_api.request_body import json_body
from nemo_vfm.serve.openai_api.score_endpoints import Scores
from nemo_vfm.serve.served_model import ServedModel

_Answer = Callable[[dict[str, Json], Request], Awaitable[Response]]
_SCORE_PATHS = ("/v1/score", "/score")  # vLLM's clients use either
_CLIENT_GONE = 499  # nobody reads it


def application(
    served: ServedModel, engine: EngineThread, *, most_body_bytes: int, split_thoughts: bool = False
) -> Starlette:
    """The application, without the guard around it.

    Args:
        served: the model.
        engine: runs it.
        most_body_bytes: of a request.
        split_thoughts: see `Chats`.
    """

    threads = ReadingThreads()

    def post(path: str, answer: _Answer) -> Route:
        async def endpoint(request: Request) -> Response:
            body = await json_body(request, most_body_bytes, threads)
            _require_model(body, served)
            return await answer(body, request)

        return Route(path, endpoint, methods=["POST"])

    async def models(request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [_described(served)]})

    async def model(request: Request) -> Response:
        _require_model({"model": request.path_params["name"]}, served)
        return JSONResponse(_described(served))

    async def health(request: Request) -> Response:
        return JSONResponse({"status": "ok", "texts": engine.num_live(), "free_tokens": engine.free_tokens()})

    return Starlette(
        routes=[
            *(post(path, answer) for path, answer in _answers(served, engine, threads, split_thoughts).items()),
            Route("/v1/models", models), Route("/v1/models/{name:path}", model), Route("/health", health),
        ],
        exception_handlers={ApiError: _told, ClientGone: _silent, ClientDisconnect: _silent, HTTPException: _unknown,
                            Exception: _failed},
    )  # fmt: skip


def _answers(
    served: ServedModel, engine: EngineThread, threads: ReadingThreads, split_thoughts: bool
) -> dict[str, _Answer]:
    """What the paths of the other kind of model say is a sentence."""
    answers: dict[str, _Answer]
    if served.reward is None:
        chats = Chats(served, engine, threads, split_thoughts=split_thoughts)
        answers = {"/v1/completions": Completions(served, engine, threads).answer, "/v1/chat/completions": chats.answer}
        score = _refusing(f"{served.name} generates text and has no scores; /v1/score needs a reward model")
    else:
        scores = Scores(served, engine, threads)
        sentence = f"{served.name} is a reward model and generates no text; use /v1/score or /v1/chat/completions"
        answers, score = {"/v1/completions": _refusing(sentence), "/v1/chat/completions": scores.chat}, scores.score
    return answers | dict.fromkeys(_SCORE_PATHS, score)


def _refusing(sentence: str) -> _Answer:
    async def refuse(body: dict[str, Json], request: Request) -> Response:
        raise ApiError(404, sentence)

    return refuse


def _require_model(body: dict[str, Json], served: ServedModel) -> None:
    name = body.get("model")
    if not isinstance(name, str) or any("\ud800" <= letter <= "\udfff" for letter in name):
        raise ApiError(400, f"model must be a text; this server has {served.name}", param="model")
    if name != served.name:
        raise ApiError(404, f"there is no model {name[:100]} here; this server has {served.name}", param="model")


def _described(served: ServedModel) -> dict[str, Json]:
    return {"id": served.name, "object": "model", "created": 0, "owned_by": "nemo_vfm",
            "max_model_len": served.context}  # fmt: skip


async def _told(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error.response()


async def _silent(request: Request, error: Exception) -> Response:
    return Response(status_code=_CLIENT_GONE)


async def _unknown(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    paths = "/v1/completions, /v1/chat/completions, /v1/score, /v1/models and /health"
    return ApiError(error.status_code, f"{error.detail}; this server answers {paths}").response()


async def _failed(request: Request, error: Exception) -> Response:
    log.warn(f"a request to {request.url.path[:100]} has failed: {type(error).__name__}")
    return ApiError(500, "the server has failed on this request; its log says why").response()
