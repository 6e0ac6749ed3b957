"""Writes the answer to a completion as OpenAI does: names, choices, log-probabilities, numbers of tokens."""

import re
import secrets
import time
from collections.abc import Callable, Sequence

from starlette.requests import Request

from nemo_vfm.core.types.json_value import Json
from nemo_vfm.serve.answers.choice_writer import Piece, WrittenToken
from nemo_vfm.serve.answers.token_text import TokenNames, TokenText
from nemo_vfm.serve.continuous.text_request import TokenResult

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


Decode = Callable[[Sequence[int]], str]


def usage(num_prompt: int, num_new: int) -> dict[str, int]:
    """Numbers of tokens; a prompt with several choices counts once."""
    return {"prompt_tokens": num_prompt, "completion_tokens": num_new, "total_tokens": num_prompt + num_new}


def echoed(decode: Decode, tokens: Sequence[int], results: Sequence[TokenResult]) -> tuple[str, list[WrittenToken]]:
    """The text of a prompt's tokens, and where each begins.

    Args:
        decode: of the tokenizer.
        tokens: the prompt.
        results: with log-probabilities; empty where none were wanted.
    """
    text, offsets, writer = "", [], TokenText(decode)
    for token in tokens:
        offsets.append(len(text))
        text += writer.add(token)
    text += writer.rest()
    return text, [WrittenToken(*pair) for pair in zip(results, offsets, strict=bool(results))] if results else []


def completion_choice(
    index: int, piece: Piece, names: TokenNames | None, *, before: tuple[str, list[WrittenToken]] | None, shift: int
) -> dict[str, Json]:  # fmt: skip
    """One choice, or a part of it.

    Args:
        index: of the choice.
        piece: its text and tokens.
        names: of tokens, where log-probabilities are wanted.
        before: the prompt's text and tokens, where they belong to this part.
        shift: characters of the choice in front of its new text.
    """
    text, tokens = before or ("", [])
    moved = [WrittenToken(token.result, token.offset + shift) for token in piece.tokens]
    return {
        "index": index, "text": text + piece.text, "finish_reason": piece.ending,
        "logprobs": None if names is None else _logprobs([*tokens, *moved], names),
    }  # fmt: skip


def _logprobs(tokens: Sequence[WrittenToken], names: TokenNames) -> dict[str, Json]:
    return {
        "tokens": [names.name(token.result.token) for token in tokens],
        "token_logprobs": [token.result.logprob for token in tokens],
        "top_logprobs": [_likeliest(token.result, names) for token in tokens],
        "text_offset": [token.offset for token in tokens],
    }


def _likeliest(result: TokenResult, names: TokenNames) -> dict[str, float] | None:
    """By their names, likeliest first, the token itself among them; None where nothing came before it."""
    if result.logprob is None:
        return None
    return {names.name(token): logprob for token, logprob in (*result.top, (result.token, result.logprob))}
