"""Defines the errors that a client is told, in the form that OpenAI's clients read."""

from collections.abc import Mapping

from starlette.responses import JSONResponse

from nemo_vfm.core.types.json_value import Json

_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error", 500: "server_error",
          503: "service_unavailable_error"}  # fmt: skip


class ApiError(Exception):
    """An answer other than 200.

    Args:
        status: of HTTP.
        message: what happened, what was expected, what to try.
        param: the field it is about.
        headers: further ones, such as Retry-After.
    """

    def __init__(
        self, status: int, message: str, *, param: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.headers = status, dict(headers or {})
        # Both may quote the client, and JSON can hold halves of surrogate pairs, which UTF-8 cannot.
        self.message, self.param = _valid_utf8(message), None if param is None else _valid_utf8(param)

    def body(self) -> dict[str, Json]:
        """The object that a client reads."""
        kind = _TYPES.get(self.status, "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": None}}

    def response(self) -> JSONResponse:
        return JSONResponse(self.body(), self.status, self.headers)


def _valid_utf8(text: str) -> str:
    return text.encode(errors="replace").decode()
