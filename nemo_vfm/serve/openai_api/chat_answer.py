"""Writes the answer to a chat as OpenAI does: messages or parts of them, and log-probabilities."""

from nemo_vfm.core.types.json_value import Json
from nemo_vfm.serve.answers.choice_writer import Piece
from nemo_vfm.serve.answers.token_names import TokenNames


def chat_choice(index: int, piece: Piece, names: TokenNames | None) -> dict[str, Json]:
    """A whole choice; `names` are of its tokens, where log-probabilities are wanted."""
    message = {"role": "assistant", "content": piece.text, "refusal": None}
    message |= {"reasoning_content": piece.thought} if piece.thought else {}
    return {"index": index, "message": message, "finish_reason": piece.ending,
            "logprobs": None if names is None else _logprobs(piece, names)}  # fmt: skip


def chat_delta(index: int, piece: Piece, names: TokenNames | None, *, first: bool) -> dict[str, Json]:
    """A part of one; the first says who speaks."""
    delta = ({"role": "assistant"} if first else {}) | ({"reasoning_content": piece.thought} if piece.thought else {})
    delta |= {"content": piece.text} if piece.text or not piece.thought else {}
    return {"index": index, "delta": delta, "finish_reason": piece.ending,
            "logprobs": None if names is None else _logprobs(piece, names)}  # fmt: skip


def _logprobs(piece: Piece, names: TokenNames) -> dict[str, Json]:
    results = [token.result for token in piece.tokens]
    return {
        "content": [
            {**_named(result.token, result.logprob, names),
             "top_logprobs": [_named(token, logprob, names) for token, logprob in result.top]}
            for result in results
        ]
    }  # fmt: skip


def _named(token: int, logprob: float | None, names: TokenNames) -> dict[str, Json]:
    own = names.bytes_of(token)
    return {"token": names.name(token), "logprob": logprob, "bytes": None if own is None else list(own)}
