"""Chooses the next token of each text from scores, and computes log-probabilities.

Shape letters: N texts or places, V vocabulary.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from nemo_vfm.language.token_choice import Choice
from nemo_vfm.serve.continuous.text_request import TokenResult

_GREEDY = (0.0, None, 1.0, 0.0)


def chosen(scores_NV: Tensor, choices: Sequence[Choice], chances: Sequence[float]) -> list[int]:
    """The next token of each text; texts with the same settings are drawn in one call.

    Args:
        scores_NV: finite.
        choices: one for each text.
        chances: a number from [0, 1) for each text.
    """
    groups: dict[tuple[float, int | None, float, float], list[int]] = {}
    for row, choice in enumerate(choices):
        groups.setdefault(_settings(choice), []).append(row)
    tokens = [0] * len(choices)
    for rows in groups.values():
        scores = scores_NV if len(rows) == len(choices) else scores_NV[rows]
        uniform = torch.tensor([chances[row] for row in rows], device=scores.device)
        for row, token in zip(rows, _drawn(choices[rows[0]], scores, uniform), strict=True):
            tokens[row] = token
    return tokens


def _drawn(choice: Choice, scores: Tensor, uniform: Tensor) -> list[int]:
    found = scores.argmax(1) if choice.temperature == 0 else choice.drawn(scores, uniform)
    return [int(token) for token in found.tolist()]


def _settings(choice: Choice) -> tuple[float, int | None, float, float]:
    if choice.temperature == 0:
        return _GREEDY
    return choice.temperature, choice.top_k, choice.top_p, choice.min_p


def token_results(scores_NV: Tensor, tokens: Sequence[int], num_top: int) -> list[TokenResult]:
    """Each place's token with its log-probability, log softmax(scores), and the likeliest of all."""
    logs_NV = scores_NV.float().log_softmax(1)
    own = logs_NV.gather(1, torch.tensor(tokens, device=logs_NV.device)[:, None])[:, 0].tolist()
    values, words = (found.tolist() for found in logs_NV.topk(min(num_top, logs_NV.shape[1]), dim=1))
    return [
        TokenResult(token, logprob, tuple(zip(top_words, top_values, strict=True)))
        for token, logprob, top_words, top_values in zip(tokens, own, words, values, strict=True)
    ]


def finite_rows(scores_NV: Tensor) -> list[bool]:
    """Which rows have a finite largest score; a row with NaN has none."""
    return [bool(finite) for finite in scores_NV.amax(1).isfinite().tolist()]
