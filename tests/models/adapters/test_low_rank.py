"""Tests low-rank adapters on one device: initialization, output, merging, and which parameters are trained."""

import json

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from nemo_vfm.models.adapters.low_rank import AdaptedLinear, FusedProjections, LowRank, Rank, adapters_of
from nemo_vfm.models.adapters.low_rank_adapter import (
    AdaptedModel,
    AdapterTarget,
    LowRankAdapter,
    adapted_linears,
    begin,
    initial_value,
)
from nemo_vfm.models.dit import DiT
from nemo_vfm.models.gpt import GPT
from nemo_vfm.parallel.apply.frozen_weights import learned_state
from nemo_vfm.parallel.layers.linear import Linear
from nemo_vfm.parallel.plan.adapter_split import is_adapter

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


def perturbed(built: nn.Module) -> nn.Module:
    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in built.named_parameters():
            if is_adapter(name):
                parameter.add_(0.1 * torch.randn_like(parameter))
    return built


def output_of(built: nn.Module) -> torch.Tensor:
    torch.manual_seed(2)
    mask = torch.ones(1, 5, dtype=torch.bool)
    output: torch.Tensor = built(latents_BCTHW=torch.randn(1, 4, 2, 4, 4), noise_B=torch.rand(1),
                   text_BLD=torch.randn(1, 5, 16), text_mask_BL=mask, fps_B=torch.tensor([24.0]))  # fmt: skip
    return output


@pytest.mark.parametrize("method", ["lora", "dora"])
def test_a_new_adapter_changes_no_output_and_is_all_that_is_trained(method) -> None:
    built = model(method=method)
    assert torch.equal(output_of(built), output_of(plain()))
    output_of(built).square().sum().backward()
    trained = {name for name, parameter in built.named_parameters() if parameter.grad is not None}
    assert trained == {name for name, _ in built.named_parameters() if is_adapter(name)} == learned_state(built).keys()
    assert {name for name, _ in built.named_parameters() if not is_adapter(name)} == dict(
        plain().named_parameters()
    ).keys()


@pytest.mark.parametrize("method", ["lora", "dora"])
def test_merged_weights_give_the_same_output(method) -> None:
    built, bare = perturbed(model(method=method)), plain()
    with torch.no_grad():
        for name, linear in adapted_linears(built):
            low = linear.adapters["own"]
            assert isinstance(low, LowRank)
            bare.get_submodule(name).weight.copy_(low.merge(linear, linear.weight))
    assert (output_of(built) - output_of(plain())).abs().max() > 0.05
    torch.testing.assert_close(output_of(built), output_of(bare), atol=1e-5, rtol=1e-5)


def linear_with(method, ranks, parts=FusedProjections(), strength=1.0) -> AdaptedLinear:
    torch.manual_seed(0)
    linear = Linear(6, 12)
    adapters_of(linear)["x"] = LowRank(linear, parts, ranks, method)
    linear.adapters["x"].strength = strength
    assert isinstance(linear, AdaptedLinear)
    adapter = linear.adapters["x"]
    with torch.no_grad():
        for parameter in adapter.parameters():
            parameter.add_(torch.rand_like(parameter))
    return linear


@pytest.mark.parametrize("strength", [1.0, -0.5])
def test_lora_matches_its_equation(strength) -> None:
    linear, x = linear_with("lora", {"whole": Rank(2, 6.0)}, strength=strength), torch.randn(3, 5, 6)
    own = linear.adapters["x"]
    expected = F.linear(x, linear.weight + strength * 6.0 / 2 * own.whole_b @ own.whole_a, linear.bias)
    torch.testing.assert_close(linear(x), expected)


@pytest.mark.parametrize("strength", [1.0, -0.5])
def test_dora_matches_its_equation_and_its_norm_has_no_gradient(strength) -> None:
    linear, x = linear_with("dora", {"whole": Rank(2, 6.0)}, strength=strength), torch.randn(3, 5, 6)
    own = linear.adapters["x"]
    changed = linear.weight + strength * 6.0 / 2 * own.whole_b @ own.whole_a
    factor = own.whole_magnitude / changed.norm(dim=1).detach()
    expected = F.linear(x, factor[:, None] * changed, linear.bias)
    torch.testing.assert_close(linear(x), expected)
    for wanted, found in zip(
        torch.autograd.grad(expected.square().sum(), [own.whole_a, own.whole_b, own.whole_magnitude]),
        torch.autograd.grad(linear(x).square().sum(), [own.whole_a, own.whole_b, own.whole_magnitude]), strict=True,
    ):  # fmt: skip
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("method", ["lora", "dora"])
def test_each_projection_of_a_fused_linear_has_its_own_adapter(method) -> None:
    """Two heads of three dimensions; only the first of two projections is adapted."""
    parts = FusedProjections(("k", "v"), (3, 3))
    linear, x = linear_with(method, {"k": Rank(2, 4.0)}, parts), torch.randn(5, 6)
    with_it, without = linear(x).unflatten(1, (2, 2, 3)), linear.forward(x).unflatten(1, (2, 2, 3))
    torch.testing.assert_close(with_it[:, :, 1], without[:, :, 1])
    assert (with_it[:, :, 0] != without[:, :, 0]).all()
    torch.testing.assert_close(F.linear(x, linear.adapters["x"].merge(linear, linear.weight), linear.bias), linear(x))


@pytest.mark.parametrize("methods", [("lora", "dora"), ("dora", "lora"), ("dora", "dora")], ids=str)
def test_adapters_that_are_merged_in_turn_compute_what_they_compute_in_turn(methods) -> None:
    linear, x = linear_with(methods[0], {"whole": Rank(2, 6.0)}, strength=0.5), torch.randn(5, 6)
    adapters_of(linear)["y"] = second = LowRank(linear, FusedProjections(), {"whole": Rank(3, 2.0)}, methods[1])
    second.strength = -1.5
    with torch.no_grad():
        for parameter in second.parameters():
            parameter.add_(torch.rand_like(parameter))
    merged = linear.weight
    for adapter in linear.adapters.values():
        merged = adapter.merge(linear, merged)
    torch.testing.assert_close(F.linear(x, merged, linear.bias), linear(x))


@pytest.mark.parametrize("method", ["lora", "dora"])
def test_a_gathered_copy_merges_as_the_adapter_does(method) -> None:
    linear = linear_with(method, {"whole": Rank(2, 6.0)}, strength=0.5)
    own = linear.adapters["x"]
    assert isinstance(own, LowRank)
    assert torch.equal(own.gather().merge(linear, linear.weight), own.merge(linear, linear.weight))


def test_each_target_has_its_rank_and_the_last_match_applies() -> None:
    targets = ALL | {
        "values": AdapterTarget(modules="blocks.*.self_attention.qkv", rank=2, alpha=2.0, parts=["v"]),
        "mlp": AdapterTarget(modules="blocks.0.mlp.up", rank=8, alpha=8.0),
    }
    ranks = LowRankAdapter(targets=targets).ranks(plain())
    assert ranks["blocks.1.self_attention.qkv"] == {"v": Rank(2, 2.0)}
    assert ranks["blocks.1.self_attention.out"] == {"whole": Rank(4, 8.0)}
    assert ranks["blocks.0.mlp.up"] == {"whole": Rank(8, 8.0)} and "blocks.1.mlp.up" not in ranks


def test_initial_weights_depend_on_the_seed_alone() -> None:
    first, again, other = (dict(learned_state(build())) for build in (model, model, lambda: model({**ALL})))
    assert all(torch.equal(first[name], again[name]) and torch.equal(first[name], other[name]) for name in first)


def test_a_is_drawn_as_by_peft() -> None:
    found = initial_value("linear.adapters.own.whole_a", torch.Size((32, 400)), seed=1)
    theirs = nn.init.kaiming_uniform_(torch.empty(32, 400), a=5**0.5)  # of peft.tuners.lora
    torch.testing.assert_close(found.abs().max(), theirs.abs().max(), rtol=1e-2, atol=0)
    assert found.std().item() == pytest.approx(theirs.std().item(), rel=0.05) and abs(found.mean()) < 0.01 * 400**-0.5


def test_a_language_model_can_have_adapters() -> None:
    def built() -> nn.Module:
        return GPT(vocab=32, width=32, depth=1, heads=2, mlp_hidden=64)

    adapted = AdaptedModel(
        built, LowRankAdapter(targets={"mlp": AdapterTarget(modules="blocks.*.mlp.*", rank=2, alpha=2.0)})
    )()
    assert [name for name, _ in adapted_linears(adapted)]


@pytest.mark.parametrize(("make", "message"), [
    (lambda: AdapterTarget(modules="x", rank=0, alpha=1.0), r"rank \(0\) must be at least 1"),
    (lambda: AdapterTarget(modules="x", rank=1, alpha=0.0), r"alpha \(0.0\) above 0"),
    (lambda: AdapterTarget(modules="x", rank=1, alpha=1.0, parts=[]), "parts is empty"),
    (lambda: LowRankAdapter(targets={}), "targets is empty"),
    (lambda: model({"a": AdapterTarget(modules="layers.*", rank=1, alpha=1.0)}), "matches no linear of this DiT"),
    (lambda: model({"a": AdapterTarget(modules="blocks.*.mlp.up", rank=1, alpha=1.0, parts=["q"])}), "match none"),
])  # fmt: skip
def test_invalid_arguments_are_refused(make, message) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.slow  # compiles
def test_compiled_blocks_give_the_same_output() -> None:
    built = perturbed(model(method="dora"))  # which does all that LoRA does
    expected = output_of(built)
    for block in built.blocks:  # type: ignore[union-attr]
        block.compile(backend="aot_eager")  # the compiler's kernels need a C++ compiler and half a minute
    torch.testing.assert_close(output_of(built), expected, atol=1e-4, rtol=1e-4)


def test_what_a_checkpoint_remembers_names_each_number_that_is_another_now():
    def adapter(alpha=8.0, parts=("q", "v"), **others):
        return LowRankAdapter(targets={"all": AdapterTarget(modules="a.*", rank=4, alpha=alpha, parts=parts), **others})

    before = json.loads(json.dumps(adapter().state()))
    assert adapter().differs_from(before) is None and adapter(alpha=8).differs_from(before) is None
    assert adapter(alpha=4.0).differs_from(before) == "targets.all.alpha 8.0 before, 4.0 now"
    assert "targets.all.parts ['q', 'v'] before, ['q'] now" in str(adapter(parts=["q"]).differs_from(before))
    assert "targets.b.rank None before, 4 now" in str(adapter(b=ALL["all"]).differs_from(before))
    assert adapter(alpha=4.0).differs_from(None) is None, "nothing is known of a checkpoint without it"
