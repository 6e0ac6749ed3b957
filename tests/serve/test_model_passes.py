"""Tests that a model made ready for serving is the function that it was, for every family that is converted."""

import json
from pathlib import Path
from typing import NoReturn, cast

import pytest
import torch

from nemo_vfm.core.types.json_value import Json
from nemo_vfm.models.convert.gpt_folder import load_gpt
from nemo_vfm.parallel.engine.serving_ranks import ServingRanks
from nemo_vfm.serve.continuous.key_value_room import KeyValueRoom
from nemo_vfm.serve.continuous.model_passes import ModelPasses, joint_rows, prompt_rows
from nemo_vfm.serve.continuous.packed_block import PackedLinear
from nemo_vfm.serve.continuous.rank_passes import LeadingPasses, follow
from nemo_vfm.serve.memory_settings import anonymous_ranges, collapse_pages
from tests.support.language_models import FAMILIES, scores, words, written


@pytest.mark.parametrize("family", FAMILIES)
@torch.inference_mode()
def test_pieces_of_a_prompt_and_single_tokens_have_the_scores_of_one_pass(family: str, tmp_path: Path) -> None:
    written(tmp_path, family)
    expected = scores(load_gpt(tmp_path), words())[0]
    tokens = words()[0].tolist()
    model = load_gpt(tmp_path).eval()
    passes = ModelPasses(model, KeyValueRoom(model, 0.01), 4)
    span = passes.room.spans.take(40)
    assert span is not None
    found = [passes.scores(passes.prompt(span, start, tokens[start : start + 9])) for start in (0, 9, 18)]
    for place in range(27, 40):
        found.append(passes.decode([(span, place)], [tokens[place]]))
    torch.testing.assert_close(torch.cat(found), expected, rtol=1e-4, atol=1e-4)


@torch.inference_mode()
def test_a_pass_over_texts_and_a_prompt_has_the_bits_of_separate_passes(tmp_path: Path) -> None:
    written(tmp_path, "qwen 3", hidden_size=528, num_attention_heads=6)
    model = load_gpt(tmp_path).eval()
    passes = ModelPasses(model, KeyValueRoom(model, 0.01), 8)
    tokens = words()[0].tolist()
    spans = [span for _ in range(4) if (span := passes.room.spans.take(40))]
    for number, span in enumerate(spans):
        passes.prompt(span, 0, tokens[: 5 + number])
    texts, new = [(span, 5 + number) for number, span in enumerate(spans[:3])], [7, 8, 9]
    assert passes.can_join(3, 20)
    expected = passes.decode(texts, new), passes.prompt(spans[3], 8, tokens[8:28])
    found = passes.joint(texts, new, spans[3], 8, tokens[8:28])
    assert torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1])


@pytest.mark.parametrize(("wrong", "expected"), [(0, 48), (32, 24), (8, 0), (48, 32)])
def test_passes_are_joined_only_as_far_as_every_number_of_rows_rounds_alike(wrong: int, expected: int) -> None:
    def probe(order: list[int]) -> torch.Tensor:
        return torch.tensor(order)[:, None] + (0.5 if len(order) == wrong else 0)

    assert joint_rows(probe, (2, 4, 6), 60) == expected


@torch.inference_mode()
def test_the_last_vector_of_a_prompt_has_its_scores(tmp_path: Path) -> None:
    written(tmp_path, "llama")
    model = load_gpt(tmp_path).eval()
    passes = ModelPasses(model, KeyValueRoom(model, 0.01), 4)
    span = passes.room.spans.take(7)
    assert span is not None
    x_SD = passes.prompt(span, 0, words()[0, :7].tolist())
    torch.testing.assert_close(passes.last_scores(x_SD[-1])[0], passes.scores(x_SD)[-1], rtol=1e-5, atol=1e-5)


class ToldRanks:
    """Two ranks in one process, each with the whole model: what rank 0 says is kept, and heard later."""

    def __init__(self) -> None:
        self.orders: list[str] = []
        self.vectors: list[torch.Tensor] = []
        self.following = False

    def tell(self, order: Json) -> None:
        self.orders.append(json.dumps(order))

    def hear(self) -> Json:
        heard: Json = json.loads(self.orders.pop(0))
        return heard

    def from_first(self, x: torch.Tensor) -> torch.Tensor:
        if not self.following:
            self.vectors.append(x.clone())
            return x
        told = self.vectors.pop(0)
        assert told.shape == x.shape
        return told

    def all_columns(self, scores: torch.Tensor) -> torch.Tensor:
        return scores


@torch.inference_mode()
def test_who_follows_the_orders_has_the_keys_and_values_of_the_leader_and_leaves_when_told(tmp_path: Path) -> None:
    written(tmp_path, "qwen 3")
    model = load_gpt(tmp_path).eval()
    ranks = ToldRanks()
    told = cast(ServingRanks, ranks)

    def broken(error: Exception) -> NoReturn:
        raise error

    leader = LeadingPasses(model, KeyValueRoom(model, 0.001), 8, told, broken)
    follower = ModelPasses(model, KeyValueRoom(model, 0.001), 8, ranks=told)
    for passes in (leader, follower):
        passes.room.pool.zero_()
    ranks.orders.clear()
    tokens = words()[0].tolist()
    first, second = leader.room.spans.take(30), leader.room.spans.take(20)
    assert first is not None and second is not None
    x_SD = leader.prompt(first, 0, tokens[:9])
    leader.last_scores(x_SD[-1])
    leader.scores(x_SD)
    leader.decode([(first, 9)], [tokens[9]])
    leader.rest()
    leader.joint([(first, 10)], [tokens[10]], second, 0, tokens[20:36])
    leader.close()
    leader.prompt(second, 16, tokens[:2])
    at_the_end = leader.room.pool.clone()
    at_the_end[:, :, :, second.start + 16 : second.start + 18] = 0  # what was done after the last order

    ranks.following = True
    follow(follower, told)
    assert torch.equal(follower.room.pool, at_the_end)
    assert not ranks.vectors and len(ranks.orders) == 1


def test_a_packed_linear_keeps_its_bias() -> None:
    linear = torch.nn.Linear(24, 40)
    x = torch.randn(3, 5, 24)
    torch.testing.assert_close(PackedLinear(linear.weight, linear.bias)(x), linear(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("inputs", [64, 2816])
@torch.inference_mode()
def test_a_row_alone_has_the_bits_that_it_has_among_others(inputs: int) -> None:
    linear = PackedLinear(torch.randn(96, inputs), torch.randn(96))
    x, other = torch.randn(5, inputs), torch.randn(5, 96)
    for after in ("none", "swish", "add", "mul"):
        second = other if after in ("add", "mul") else None
        alone = linear(x[:1], None if second is None else second[:1], after)
        assert torch.equal(alone, linear(x, second, after)[:1]), after


def test_ranges_of_memory_that_touch_are_one() -> None:
    maps = "1000-3000 rw-p 00000000 00:00 0 [heap]\n3000-4000 rw-p 00000000 00:00 0 [heap]\n" \
        "5000-6000 rw-p 00000000 00:00 0 \n6000-7000 r--p 00000000 00:00 0 \n"  # fmt: skip
    assert anonymous_ranges(maps) == [(0x1000, 0x4000), (0x5000, 0x6000)]


def test_prompts_of_all_lengths_take_few_numbers_of_rows() -> None:
    rows = [prompt_rows(tokens) for tokens in range(1, 129)]
    assert all(tokens <= row < tokens + 16 for tokens, row in enumerate(rows, 1)) and len(set(rows)) == 10


@pytest.mark.slow
def test_large_pages_change_no_value() -> None:
    tensor = torch.arange(3 << 20)
    maps = Path("/proc/self/maps")
    if not maps.is_file():
        pytest.skip("this system does not list a process's memory")
    assert any(start <= tensor.data_ptr() < end for start, end in anonymous_ranges(maps.read_text()))
    collapse_pages()
    assert torch.equal(tensor, torch.arange(3 << 20))
