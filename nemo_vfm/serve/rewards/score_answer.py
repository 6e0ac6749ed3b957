"""Writes scores as clients read them: vLLM's list of scores, and the chat of Nemotron's reward endpoint."""

from collections.abc import Mapping

from nemo_vfm.core.types.json_value import Json
from nemo_vfm.models.reward import RewardHead


def score_entry(index: int, scores: Mapping[str, float], head: RewardHead) -> dict[str, Json]:
    """An entry of `data`: as vLLM's, with the attributes besides."""
    return {"index": index, "object": "score", "score": head.score(scores), "scores": dict(scores)}


def scored_choice(scores: Mapping[str, float], *, with_logprobs: bool) -> dict[str, Json]:
    """The choice of a chat: attributes in the place of tokens, scores in that of log-probabilities."""
    content = ",".join(f"{name}:{value}" for name, value in scores.items())
    listed: list[Json] = [
        {"token": name, "logprob": value, "bytes": None, "top_logprobs": []} for name, value in scores.items()
    ]
    return {"index": 0, "message": {"role": "assistant", "content": content, "refusal": None},
            "finish_reason": "stop", "logprobs": {"content": listed} if with_logprobs else None}  # fmt: skip
