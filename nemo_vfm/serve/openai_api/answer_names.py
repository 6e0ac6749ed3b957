"""Names an answer: its id, its time, its model."""

import re
import secrets
import time

from starlette.requests import Request

from nemo_vfm.core.types.json_value import Json

REQUEST_ID = "x-request-id"
_SAFE = re.compile(r"[A-Za-z0-9._:-]{1,128}")


class AnswerNames:
    """Of one request.

    Args:
        request: whose own name, in X-Request-Id, is repeated.
        model: as clients call it.
        revision: of its weights.
    """

    def __init__(self, request: Request, model: str, revision: str) -> None:
        given = request.headers.get(REQUEST_ID, "")
        self._request_id = given if _SAFE.fullmatch(given) else secrets.token_hex(16)
        self._model, self._revision, self._created = model, revision, int(time.time())

    def headers(self) -> dict[str, str]:
        """Of the answer."""
        return {REQUEST_ID: self._request_id}

    def body(self, prefix: str, kind: str) -> dict[str, Json]:
        """The fields that every answer and every part of a stream begin with."""
        return {"id": f"{prefix}-{self._request_id}", "object": kind, "created": self._created, "model": self._model,
                "system_fingerprint": self._revision or None}  # fmt: skip
