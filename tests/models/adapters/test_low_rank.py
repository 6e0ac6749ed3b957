# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Tests low-rank adapters on one device: what they begin as, what they add, what merging gives, and what learns."""

import json

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from nemo_vfm.models.adapters.adapted_linear import AdaptedLinear, adapters_of
from nemo_vfm.models.adapters.low_rank import LowRank, Parts, Rank
from nemo_vfm.models.adapters.low_rank_adapter import (
    AdaptedModel,
    AdapterTarget,
    LowRankAdapter,
    adapted_linears,
    begin,
)
from nemo_vfm.models.dit import DiT
from nemo_vfm.models.gpt import GPT
from nemo_vfm.parallel.apply.beside_linear import is_adapter
from nemo_vfm.parallel.apply.frozen_weights import learned_state
from nemo_vfm.parallel.engine.matmul_support import Linear

ALL = {"all": AdapterTarget(modules="blocks.*.self_attention.*", rank=4, alpha=8.0)}
SIZES = {"in_channels": 4, "text_dim": 16, "width": 48, "depth": 2, "heads": 2}


def plain() -> DiT:
    torch.manual_seed(0)
    model = DiT(**SIZES)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def model(targets=ALL, method="lora") -> nn.Module:
    built = AdaptedModel(plain, LowRankAdapter(targets=targets, method=method))()
    begin(built)
    return built


def stirred(built: nn.Module) -> nn.Module:
    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in built.named_parameters():
            if is_adapter(name):
                parameter.add_(0.1 * torch.randn_like(parameter))
    return built


def called(built: nn.Module) -> torch.Tensor:
    torch.manual_seed(2)
    mask = torch.ones(1, 5, dtype=torch.bool)
    output: torch.Tensor = built(latents_BCTHW=torch.randn(1, 4, 2, 4, 4), noise_B=torch.rand(1),
                   text_BLD=torch.randn(1, 5, 16), text_mask_BL=mask, fps_B=torch.tensor([24.0]))  # fmt: skip
    return output


@pytest.mark.parametrize("method", ["lora", "dora"])
def test_a_new_adapter_changes_nothing_and_alone_learns(method) -> None:
    built = model(method=method)
    assert torch.equal(called(built), called(plain()))
    called(built).square().sum().backward()
    learning = {name for name, parameter in built.named_parameters() if parameter.grad is not None}
    assert learning == {name for name, _ in built.named_parameters() if is_adapter(name)} == learned_state(built).keys()
    assert {name for name, _ in built.named_parameters() if not is_adapter(name)} == dict(
        plain().named_parameters()
    ).keys()


@pytest.mark.parametrize("method", ["lora", "dora"])
def test_merged_weights_are_the_same_function(method) -> None:
    built, bare = stirred(model(method=method)), plain()
    with torch.no_grad():
        for name, linear in adapted_linears(built):
            low = linear.adapters["own"]
            assert isinstance(low, LowRank)
            bare.get_submodule(name).weight.copy_(low.merged(linear, linear.weight))
    assert (called(built) - called(plain())).abs().max() > 0.05
    torch.testing.assert_close(called(built), called(bare), atol=1e-5, rtol=1e-5)


def linear_with(method, ranks, parts=Parts()) -> AdaptedLinear:
    torch.manual_seed(0)
    linear = Linear(6, 12)
    adapters_of(linear)["x"] = LowRank(linear, parts, ranks, method)
    assert isinstance(linear, AdaptedLinear)
    stirred_ = linear.adapters["x"]
    with torch.no_grad():
        for parameter in stirred_.parameters():
            parameter.add_(torch.rand_like(parameter))
    return linear


def test_lora_is_its_equation() -> None:
    linear, x = linear_with("lora", {"whole": Rank(2, 6.0)}), torch.randn(3, 5, 6)
    own = linear.adapters["x"]
    expected = F.linear(x, linear.weight + 6.0 / 2 * own.whole_b @ own.whole_a, linear.bias)
    torch.testing.assert_close(linear(x), expected)


def test_dora_is_its_equation_and_its_norm_is_held_constant_in_backward() -> None:
    linear, x = linear_with("dora", {"whole": Rank(2, 6.0)}), torch.randn(3, 5, 6)
    own = linear.adapters["x"]
    changed = linear.weight + 6.0 / 2 * own.whole_b @ own.whole_a
    factor = own.whole_magnitude / changed.norm(dim=1).detach()
    expected = F.linear(x, factor[:, None] * changed, linear.bias)
    torch.testing.assert_close(linear(x), expected)
    for wanted, found in zip(
        torch.autograd.grad(expected.square().sum(), [own.whole_a, own.whole_b, own.whole_magnitude]),
        torch.autograd.grad(linear(x).square().sum(), [own.whole_a, own.whole_b, own.whole_magnitude]), strict=True,
    ):  # fmt: skip
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("method", ["lora", "dora"])
def test_parts_of_a_joint_projection_have_adapters_of_their_own(method) -> None:
    """Rows of two heads of three dimensions; the second of two projections has none."""
    parts = Parts(("k", "v"), 3)
    linear, x = linear_with(method, {"k": Rank(2, 4.0)}, parts), torch.randn(5, 6)
    with_it, without = linear(x).unflatten(1, (2, 2, 3)), linear.forward(x).unflatten(1, (2, 2, 3))
    torch.testing.assert_close(with_it[:, :, 1], without[:, :, 1])
    assert (with_it[:, :, 0] != without[:, :, 0]).all()
    torch.testing.assert_close(F.linear(x, linear.adapters["x"].merged(linear, linear.weight), linear.bias), linear(x))


def test_a_rank_for_each_target_and_the_last_one_counts() -> None:
    targets = ALL | {
        "values": AdapterTarget(modules="blocks.*.self_attention.qkv", rank=2, alpha=2.0, parts=["v"]),
        "mlp": AdapterTarget(modules="blocks.0.mlp.up", rank=8, alpha=8.0),
    }
    ranks = LowRankAdapter(targets=targets).ranks(plain())
    assert ranks["blocks.1.self_attention.qkv"] == {"v": Rank(2, 2.0)}
    assert ranks["blocks.1.self_attention.out"] == {"whole": Rank(4, 8.0)}
    assert ranks["blocks.0.mlp.up"] == {"whole": Rank(8, 8.0)} and "blocks.1.mlp.up" not in ranks


def test_first_weights_are_a_function_of_the_seed_alone() -> None:
    first, again, other = (dict(learned_state(build())) for build in (model, model, lambda: model({**ALL})))
    assert all(torch.equal(first[name], again[name]) and torch.equal(first[name], other[name]) for name in first)


def test_a_language_model_takes_adapters_too() -> None:
    def built() -> nn.Module:
        return GPT(vocab=32, width=32, depth=1, heads=2, mlp_hidden=64)

    adapted = AdaptedModel(
        built, LowRankAdapter(targets={"mlp": AdapterTarget(modules="blocks.*.mlp.*", rank=2, alpha=2.0)})
    )()
    assert [name for name, _ in adapted_linears(adapted)]


@pytest.mark.parametrize(("make", "said"), [
    (lambda: AdapterTarget(modules="x", rank=0, alpha=1.0), r"rank \(0\) must be at least 1"),
    (lambda: AdapterTarget(modules="x", rank=1, alpha=0.0), r"alpha \(0.0\) above 0"),
    (lambda: AdapterTarget(modules="x", rank=1, alpha=1.0, parts=[]), "parts is empty"),
    (lambda: LowRankAdapter(targets={}), "targets is empty"),
    (lambda: model({"a": AdapterTarget(modules="layers.*", rank=1, alpha=1.0)}), "names no linear of this DiT; it has"),
    (lambda: model({"a": AdapterTarget(modules="blocks.*.mlp.up", rank=1, alpha=1.0, parts=["q"])}), "none of what"),
])  # fmt: skip
def test_what_cannot_be_is_refused(make, said) -> None:
    with pytest.raises(ValueError, match=said):
        make()


@pytest.mark.slow  # compiles
@pytest.mark.parametrize("method", ["lora", "dora"])
def test_compiled_blocks_give_the_same(method) -> None:
    built = stirred(model(method=method))
    expected = called(built)
    for block in built.blocks:  # type: ignore[union-attr]
        block.compile()
    torch.testing.assert_close(called(built), expected, atol=1e-4, rtol=1e-4)


def test_what_a_checkpoint_remembers_names_each_number_that_is_another_now():
    def adapter(alpha=8.0, parts=("q", "v"), **others):
        return LowRankAdapter(targets={"all": AdapterTarget(modules="a.*", rank=4, alpha=alpha, parts=parts), **others})

    before = json.loads(json.dumps(adapter().state()))
    assert adapter().differs_from(before) is None and adapter(alpha=8).differs_from(before) is None
    assert adapter(alpha=4.0).differs_from(before) == "targets.all.alpha 8.0 before, 4.0 now"
    assert "targets.all.parts ['q', 'v'] before, ['q'] now" in str(adapter(parts=["q"]).differs_from(before))
    assert "targets.b.rank None before, 4 now" in str(adapter(b=ALL["all"]).differs_from(before))
    assert adapter(alpha=4.0).differs_from(None) is None, "nothing is known of a checkpoint without it"
