"""Tests language models: published sizes, independent documents, a cache that changes nothing."""

import math
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.fp8 import Fp8
from nemo_vfm.models.adapters.low_rank_adapter import AdapterTarget, LowRankAdapter
from nemo_vfm.models.blocks.text.experts import Experts
from nemo_vfm.models.blocks.text.rope_scaling import LongRope
from nemo_vfm.models.blocks.text.sliding_window import SlidingWindow
from nemo_vfm.models.blocks.text_rope import LongContext, TextRope
from nemo_vfm.models.gpt import GPT
from nemo_vfm.parallel.apply.apply_parallelism import recompute, require_divisible
from nemo_vfm.parallel.fp8.use_fp8 import large_linears
from nemo_vfm.parallel.layers import linear_token_losses as fused
from nemo_vfm.parallel.layers.linear import Linear
from nemo_vfm.parallel.layers.linear_token_losses import linear_token_losses
from nemo_vfm.parallel.layers.parallel_attention import causal_attention
from nemo_vfm.parallel.layers.vocab_parallel_loss import IGNORED, token_losses
from nemo_vfm.parallel.plan.plan import ParallelPlan

SMALL: dict[str, Any] = {"vocab": 96, "width": 48, "depth": 3, "heads": 6, "groups": 2, "mlp_hidden": 80}
NEMOTRON: dict[str, Any] = {"activation": "squared_relu", "norm": "layernorm1p", "rope": TextRope(share=0.5)}
WINDOW: dict[str, Any] = {"window": SlidingWindow(tokens=4, layers=(0, 2), rope=TextRope(theta=100.0))}


def test_weights_begin_normal_and_those_that_write_to_the_residual_are_smaller_by_the_root_of_their_number() -> None:
    """Radford et al. 2019, section 2.3: 1 / sqrt(N) with N residual layers, two a block; Megatron's scaled_init."""
    depth, std, seed = 8, 0.03, 5
    model = GPT(vocab=500, width=64, depth=depth, heads=4, groups=2, mlp_hidden=128, init_std=std)
    shapes = {name: one.shape for name, one in model.named_parameters() if one.dim() == 2}
    assert len(shapes) == 2 + 5 * depth
    for name, shape in shapes.items():
        drawn, writes = (
            model.initial_weight(name, shape, seed),
            name.endswith(("attention.out.weight", "mlp.down.weight")),
        )
        expected = std / math.sqrt(2 * depth) if writes else std
        assert float(drawn.std()) == pytest.approx(expected, rel=4 / math.sqrt(2 * drawn.numel())), name
        assert abs(float(drawn.mean())) < 5 * expected / math.sqrt(drawn.numel())


def words(*shape: int) -> torch.Tensor:
    return torch.randint(0, 96, shape, generator=torch.Generator().manual_seed(1))


def test_nemotron_4_340b_has_its_published_parameters() -> None:
    with torch.device("meta"):
        model = GPT(vocab=256_000, width=18_432, depth=96, heads=96, groups=8, mlp_hidden=73_728, **NEMOTRON)
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    embedding = sizes["embedding.weight"] + sizes["head.weight"]
    assert round(embedding / 1e9, 3) == 9.437
    assert round((sum(sizes.values()) - embedding) / 1e9, 3) == 331.592


@pytest.mark.parametrize("family", [{}, NEMOTRON], ids=["llama", "nemotron"])
def test_no_word_sees_a_later_one(family: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model, text = GPT(**SMALL, **family), words(2, 16)
    changed = text.clone()
    changed[:, 9] = (changed[:, 9] + 1) % 96
    labels = words(2, 16)
    before, after = model(text, labels), model(changed, labels)
    assert torch.equal(before[:, :9], after[:, :9]) and (before[:, 9:] != after[:, 9:]).all()


def test_a_word_reaches_as_far_back_as_the_windows_of_all_blocks_together() -> None:
    torch.manual_seed(0)
    text = words(1, 300)
    changed, labels = text.clone(), words(1, 300)
    changed[:, 100] = (changed[:, 100] + 1) % 96
    model = GPT(**SMALL, window=SlidingWindow(tokens=5))  # three blocks, so 3 x 4 places
    same = model(text, labels) == model(changed, labels)
    assert same[:, :100].all() and same[:, 113:].all() and not same[:, 100:113].any()


def test_attention_in_a_window_is_that_of_a_mask() -> None:
    q, k, v = (torch.randn(2, heads, 700, 8, requires_grad=True) for heads in (6, 2, 2))
    place, begin = torch.arange(700), torch.tensor([0] * 280 + [280] * 420)
    mask = (place <= place[:, None]) & (place > place[:, None] - 200) & (place >= begin[:, None])
    expected = F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)
    found = causal_attention(q, k, v, (280, 420), 200)
    torch.testing.assert_close(found, expected)
    weights = torch.randn_like(found)
    for one, other in zip(*(torch.autograd.grad((out * weights).sum(), (q, k, v)) for out in (found, expected)),
                          strict=True):  # fmt: skip
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("window", [1, 5, 16, 40])
def test_a_window_costs_the_keys_that_are_seen(window: int) -> None:
    seen = sum(min(place + 1, window) for place in range(16))
    model = GPT(**SMALL, window=SlidingWindow(tokens=window))
    (found,) = [op.flops for op in model.ops({"tokens_BS": (1, 16)}) if op.kind == "attention"]
    whole = sum(op.flops for op in GPT(**SMALL).ops({"tokens_BS": (1, 16)}) if op.kind == "attention")
    assert found / whole == pytest.approx((2 * seen - 16) / 16**2)  # as causal attention is counted: the diagonal once


def test_context_devices_are_refused_for_a_window() -> None:
    model = GPT(**SMALL, **WINDOW)
    require_divisible(model, ParallelPlan(tensor=2, shard=2))
    with pytest.raises(UserError, match="some blocks see 4 tokens"):
        require_divisible(model, ParallelPlan(context=2))


def test_a_mixture_of_experts_is_on_one_device_and_not_in_fp8() -> None:
    model = GPT(**SMALL, experts=Experts(4, per_token=2, hidden=16))
    require_divisible(model, ParallelPlan(microbatches=4))
    for plan in (ParallelPlan(tensor=2), ParallelPlan(shard=2), ParallelPlan(replicate=2), ParallelPlan(context=2)):
        with pytest.raises(UserError, match=r"experts \(model\.experts\) runs on one device, but this plan is for 2"):
            require_divisible(model, plan)
    with pytest.raises(UserError, match="cannot be trained in FP8"):
        large_linears(model, Fp8())


def test_adapters_of_perceptrons_do_not_learn_in_a_router_alone() -> None:
    with torch.device("meta"):
        model = GPT(**SMALL, experts=Experts(4, per_token=2, hidden=16))
    target = AdapterTarget(modules="blocks.*.mlp.*", rank=2, alpha=2.0)  # as lora_text has it
    with pytest.raises(ValueError, match=r"matches no linear of this GPT, which has .*experts\.perceptrons"):
        LowRankAdapter(targets={"mlp": target}).ranks(model)


def test_every_expert_has_a_gradient_and_running_blocks_again_changes_none() -> None:
    torch.manual_seed(0)
    model, text = GPT(**SMALL, experts=Experts(40, per_token=2, hidden=16, balance=0.5)), words(1, 8)
    model(text, text).sum().backward()
    kept = {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}
    assert len(kept) == len(dict(model.named_parameters())) and not all(one.any() for one in kept.values())
    model.zero_grad(set_to_none=True)
    recompute(model)
    model(text, text).sum().backward()
    assert all(torch.equal(kept[name], one.grad) for name, one in model.named_parameters() if one.grad is not None)


@pytest.mark.parametrize("family", [NEMOTRON, WINDOW], ids=["nemotron", "window"])
def test_packed_documents_are_as_if_alone(family: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model, text, labels = GPT(**SMALL, **family), words(2, 16), words(2, 16)
    packed = model(text, labels, torch.tensor([5, 11, 16]))
    alone = [model(text[:1, :5], labels[:1, :5]), model(text[:1, 5:], labels[:1, 5:]), model(text[1:], labels[1:])]
    torch.testing.assert_close(packed.flatten(), torch.cat(alone, 1).flatten(), atol=1e-5, rtol=1e-5)
    with pytest.raises(ValueError, match="documents of 20 tokens in all do not fill a batch of 32"):
        model(text, labels, torch.tensor([5, 15]))


@pytest.mark.parametrize("family", [NEMOTRON, WINDOW], ids=["nemotron", "window"])
def test_a_cache_changes_no_score_and_texts_of_a_batch_may_begin_at_different_places(family: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model, text = GPT(**SMALL, **family).eval(), words(1, 12)
    whole = model.scores(text, model.cache(torch.zeros(1, dtype=torch.long), 12, torch.float32), last=False)
    padded = torch.cat([text, F.pad(text[:, :8], (4, 0))])
    cache = model.cache(torch.tensor([0, 4]), 12, torch.float32)
    found = [model.scores(padded[:, :6], cache), *(model.scores(padded[:, at : at + 1], cache) for at in range(6, 12))]
    torch.testing.assert_close(torch.stack([one[0] for one in found]), whole[0, 5:], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found[-1][1], whole[0, 7], atol=1e-5, rtol=1e-5)
    with pytest.raises(ValueError, match="room for 12 tokens, and 13 were requested"):
        model.scores(padded[:, :1], cache)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_loss_of_a_token_is_torchs_and_so_is_its_gradient(dtype: torch.dtype) -> None:
    scores = torch.randn(700, 96, generator=torch.Generator().manual_seed(0)).mul(4).to(dtype)
    targets, weights = words(700), torch.rand(700)
    targets[::9] = IGNORED
    ours, theirs = (scores.clone().requires_grad_() for _ in range(2))
    found = token_losses(ours * 1, targets)
    expected = F.cross_entropy(theirs.float(), targets, reduction="none", ignore_index=IGNORED)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    (found * weights).sum().backward()
    (expected * weights).sum().backward()
    assert ours.grad is not None and theirs.grad is not None
    torch.testing.assert_close(
        ours.grad.float(), theirs.grad.float(), atol=1e-6 if dtype.itemsize == 4 else 4e-3, rtol=0
    )
    assert not ours.grad[::9].any()


@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 1e-6), (torch.bfloat16, 8e-3)], ids=str)
@pytest.mark.parametrize("weighted", [True, False])
def test_losses_without_all_scores_in_memory_are_torchs_and_so_are_their_gradients(
    weighted: bool, dtype: torch.dtype, close: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused, "_LARGE", 20_000)
    monkeypatch.setattr(fused, "_SCORES", 20_000 * 70)
    torch.manual_seed(0)
    head = Linear(24, 20_000, bias=False)
    x, targets, weights = torch.randn(3, 200, 24, requires_grad=True), words(3, 200), torch.tensor([1.0, 0.5, 0.0])
    targets[:, ::9] = IGNORED
    found = []
    for by_runs in (True, False):
        x.grad = head.weight.grad = None
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            if by_runs:
                losses = linear_token_losses(head, x, targets, weights[:, None].expand(3, 200) if weighted else None)
            else:
                scores = F.linear(x, head.weight)
                losses = F.cross_entropy(scores.flatten(0, 1), targets.flatten(), reduction="none").view(3, 200)
        (losses.sum(1) * weights / 7).sum().backward()
        assert x.grad is not None and head.weight.grad is not None
        found.append((losses.detach(), x.grad, head.weight.grad))
    for ours, theirs in zip(*found, strict=True):
        assert float((ours - theirs).norm() / theirs.norm()) < close
    assert not found[0][0][:, ::9].any() and not found[0][1][2].any()


def test_a_gradient_that_is_not_as_the_weights_said_is_not_taken() -> None:
    head, x, targets = Linear(8, 50_000, bias=False), torch.randn(1, 6, 8, requires_grad=True), words(1, 6)
    losses = linear_token_losses(head, x, targets, torch.ones(1, 6))
    (losses * torch.tensor([1.0, 1, 1, 1, 1, 1.01])).sum().backward()
    assert x.grad is not None and x.grad.isnan().all()


@pytest.mark.parametrize("family", [{}, NEMOTRON], ids=["llama", "nemotron"])
def test_it_says_what_it_costs(family: dict[str, Any]) -> None:
    model, text = GPT(**SMALL, **family), words(2, 16)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(text, text)
    told = sum(op.flops for op in model.ops({"tokens_BS": (2, 16)}))
    assert told == counter.get_total_flops()


def test_long_context_stretches_low_frequencies_alone() -> None:
    frequencies = torch.tensor([1.0, 1e-2, 1e-3, 1e-5])
    stretched, _ = LongContext(factor=8.0, trained_on=8192).scale_frequencies(frequencies, 5e5, torch.ones(1, 1))
    assert stretched[:2].tolist() == pytest.approx([1.0, 1e-2])
    assert 1e-3 / 8 < stretched[2] < 1e-3 and stretched[3] == pytest.approx(1e-5 / 8)
    assert torch.equal(LongContext(factor=1.0).scale_frequencies(frequencies, 5e5, torch.ones(1, 1))[0], frequencies)


@pytest.mark.parametrize(
    ("wrong", "words_"),
    [
        ({"width": 50}, "width 50 is not divisible by 6 heads"),
        ({"groups": 4}, "6 heads cannot share 4 heads of keys"),
        ({"vocab": 0}, "vocab must be at least 1"),
        ({"rope": TextRope(share=0.1)}, "rotates 0 of its dimensions"),
        (
            {"rope": TextRope(long_context=LongRope((1.0,), (2.0,), 8))},
            "has 1 factors, and 8 rotated dimensions have 4",
        ),
        ({"window": SlidingWindow(4, (0, 3))}, r"window\.layers\.1 must be at most 2, got 3"),
        ({"experts": Experts(4, 2, 16, dense_layers=(7,))}, r"experts\.dense_layers\.0 must be at most 2, got 7"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(wrong: dict[str, Any], words_: str) -> None:
    with pytest.raises(ValueError, match=words_):
        GPT(**(SMALL | wrong))


def test_positions_of_long_rope_are_those_of_a_text_whatever_lies_beside_it() -> None:
    torch.manual_seed(0)
    rope = TextRope(long_context=LongRope((1.0, 1.5, 2.0, 3.0), (4.0, 5.0, 6.0, 7.0), trained_on=8))
    model, text, labels = GPT(**SMALL, rope=rope).eval(), words(1, 24), words(1, 24)
    packed = model(text, labels, torch.tensor([8, 16]))
    alone = [model(text[:, :8], labels[:, :8]), model(text[:, 8:], labels[:, 8:])]
    torch.testing.assert_close(packed, torch.cat(alone, 1), atol=1e-5, rtol=1e-5)
    cache = model.cache(torch.tensor([0, 8]), 16, torch.float32)
    both = model.scores(torch.cat([text[:, 8:], F.pad(text[:, :8], (8, 0))]), cache)
    for begin, end, found in ((8, 24, both[0]), (0, 8, both[1])):
        cache = model.cache(torch.zeros(1, dtype=torch.long), end - begin, torch.float32)
        torch.testing.assert_close(model.scores(text[:, begin:end], cache)[0], found, atol=1e-5, rtol=1e-5)
