# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Writes the answer to a chat as OpenAI does: messages or parts of them, and log-probabilities."""

from collections.abc import Callable, Sequence

from nemo_vfm.core.types.json_value import Json
from nemo_vfm.serve.answers.choice_writer import Piece

Decode = Callable[[Sequence[int]], str]


def chat_choice(index: int, piece: Piece, decode: Decode, *, with_logprobs: bool) -> dict[str, Json]:
    """A whole choice."""
    message = {"role": "assistant", "content": piece.text, "refusal": None}
    message |= {"reasoning_content": piece.thought} if piece.thought else {}
    return {"index": index, "message": message, "finish_reason": piece.ending,
            "logprobs": _logprobs(piece, decode) if with_logprobs else None}  # fmt: skip


def chat_delta(index: int, piece: Piece, decode: Decode, *, first: bool, with_logprobs: bool) -> dict[str, Json]:
    """A part of one; the first says who speaks."""
    delta = ({"role": "assistant"} if first else {}) | ({"reasoning_content": piece.thought} if piece.thought else {})
    delta |= {"content": piece.text} if piece.text or not piece.thought else {}
    return {"index": index, "delta": delta, "finish_reason": piece.ending,
            "logprobs": _logprobs(piece, decode) if with_logprobs else None}  # fmt: skip


def _logprobs(piece: Piece, decode: Decode) -> dict[str, Json]:
    results = [token.result for token in piece.tokens]
    return {
        "content": [
            {**_named(result.token, result.logprob, decode),
             "top_logprobs": [_named(token, logprob, decode) for token, logprob in result.top]}
            for result in results
        ]
    }  # fmt: skip


def _named(token: int, logprob: float | None, decode: Decode) -> dict[str, Json]:
    text = decode([token])
    return {"token": text, "logprob": logprob, "bytes": list(text.encode(errors="replace"))}
