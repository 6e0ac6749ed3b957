# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Tests that a model split over tensor ranks writes the tokens that one device writes."""

from pathlib import Path

import pytest
import torch

from nemo_vfm.core.errors import UserError
from nemo_vfm.language.token_choice import Choice
from nemo_vfm.models.convert.gpt_folder import load_gpt
from nemo_vfm.parallel.engine.serving_ranks import require_whole_heads, split_for_serving
from nemo_vfm.serve.continuous.batch_engine import BatchEngine, ServedText
from nemo_vfm.serve.continuous.key_value_room import KeyValueRoom, bytes_per_token
from nemo_vfm.serve.continuous.model_passes import ModelPasses
from nemo_vfm.serve.continuous.rank_passes import LeadingPasses, follow
from nemo_vfm.serve.continuous.text_request import TextEnding, TextRequest, TokenResult
from tests.support.language_models import written
from tests.support.ranks import on_ranks

Written = list[tuple[list[int], list[float | None]]]


class _Listener:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.logprobs: list[float | None] = []
        self.ending: TextEnding | None = None

    def prompt(self, results: list[TokenResult]) -> None:
        self.logprobs += [result.logprob for result in results]

    def token(self, result: TokenResult) -> bool:
        self.tokens.append(result.token)
        return True

    def ended(self, ending: TextEnding) -> None:
        self.ending = ending


def _requests() -> list[TextRequest]:
    """Prompts of 1 to 40 tokens, answers of 3 to 24, every second one drawn; the last only scored."""
    found = []
    for number, (length, new) in enumerate([(1, 24), (40, 3), (7, 12), (19, 8), (33, 16), (2, 20)]):
        choice = Choice(temperature=1.0 if number % 2 else 0.0)
        tokens = tuple((31 * number + 7 * place) % 96 for place in range(length))
        found.append(TextRequest(tokens, new, choice, seed=number))
    return [*found, TextRequest(tuple(range(3, 30)), 0, Choice(temperature=0), 0, score_prompt=True, num_top=1)]


def _answers(passes: ModelPasses) -> Written:
    """What is written; a text joins with every second step, three run at once, and one leaves before its end."""
    engine, listeners = BatchEngine(passes, most_running=3, piece=16), []
    waiting = [TextRequest((5, 6), 200, Choice(temperature=0), 0), *_requests()]
    first: ServedText | None = None
    for step in range(400):
        if step % 2 == 0 and waiting:
            listeners.append(_Listener())
            text = ServedText(waiting.pop(0), listeners[-1])
            first = first or text
            engine.submit(text)
        if step == 30 and first is not None:
            engine.cancel(first)
        if not engine.step() and not waiting:
            break
    engine.close()
    assert [one.ending for one in listeners] == ["cancelled", *["length"] * (len(listeners) - 1)]
    return [(one.tokens, one.logprobs) for one in listeners]


def _share(rank: int, folder: str, dtype: torch.dtype) -> tuple[Written, int]:
    """On each rank: what it wrote, and the bytes of its weights."""
    model = load_gpt(Path(folder)).to(dtype).eval().requires_grad_(False)
    ranks = split_for_serving(model, 2)
    num_bytes = sum(one.to_local().nbytes for one in model.parameters() if hasattr(one, "to_local"))
    room = KeyValueRoom(model, 0.001, 2)
    if rank:
        follow(ModelPasses(model, room, 3, ranks=ranks), ranks)
        return [], num_bytes
    return _answers(LeadingPasses(model, room, 3, ranks, _raise)), num_bytes


def _raise(error: Exception) -> None:
    raise error


@pytest.mark.cluster  # several ranks
@pytest.mark.parametrize(("family", "dtype"), [("llama", torch.float64), ("llama 3.1, tied", torch.float32),
                                               ("nemotron", torch.float32)], ids=str)  # fmt: skip
def test_two_ranks_write_the_tokens_of_one(family: str, dtype: torch.dtype, tmp_path: Path) -> None:
    written(tmp_path, family, initializer_range=0.3)
    model = load_gpt(tmp_path).to(dtype).eval()
    expected = _answers(ModelPasses(model, KeyValueRoom(model, 0.001), 3))
    (found, num_bytes), (_, other_bytes) = on_ranks(2, _share, str(tmp_path), dtype)
    whole = sum(one.nbytes for name, one in load_gpt(tmp_path).to(dtype).named_parameters() if "norm" not in name)
    assert num_bytes == other_bytes == whole // 2
    for (tokens, logprobs), (other, other_logprobs) in zip(expected, found, strict=True):
        assert tokens == other
        assert logprobs == pytest.approx(other_logprobs, abs=1e-4)


def test_a_rank_has_room_for_twice_the_tokens(tmp_path: Path) -> None:
    written(tmp_path, "llama")
    model = load_gpt(tmp_path)
    alone, share = KeyValueRoom(model, 0.001), KeyValueRoom(model, 0.001, 2)
    assert share.num_tokens == 1e6 // (bytes_per_token(model) // 2)
    assert share.pool.shape[2] * 2 == alone.pool.shape[2]
    assert max(share.num_bytes(), alone.num_bytes()) <= 1e6


def test_ranks_that_would_share_a_head_are_refused(tmp_path: Path) -> None:
    written(tmp_path, "llama")
    with pytest.raises(UserError, match=r"--tensor 3 does not divide .* 2 heads .*\(6 of queries\); 1, 2 would"):
        require_whole_heads(load_gpt(tmp_path), 3)
