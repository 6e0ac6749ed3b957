"""Tests the DiT: the identity at the start, the effect of text and masks, its plan and its cost."""

import dataclasses

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from nemo_vfm.core.types.model_traits import ReportsFlops
from nemo_vfm.models.blocks.layers import draw_weights
from nemo_vfm.models.blocks.video_tokens import mask_text, noise_levels
from nemo_vfm.models.dit import DiT
from nemo_vfm.models.noise_experts import NoiseExperts
from nemo_vfm.parallel.plan.sharding_spec import Divisible, match_modules


def tiny(**changes):
    torch.manual_seed(3)
    return DiT(**{"in_channels": 4, "text_dim": 16, "width": 48, "depth": 2, "heads": 2} | changes)


#: What makes a DiT the network of Cosmos 1.0.
COSMOS = {"modulation_rank": 8, "learned_positions": (4, 4, 4), "padding_mask": True, "bias": False}
#: Everything that can be switched on and goes together.
ALL = {"text_in_modulation": True, "position_embedding": True, "uncertainty": True}


def awake(model):
    """A model whose zeros are gone, so that everything has an influence."""
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def inputs(batch=2, channels=4, size=(2, 4, 6), text_tokens=5, text_dim=16):
    torch.manual_seed(7)
    return {
        "latents_BCTHW": torch.randn(batch, channels, *size),
        "noise_B": torch.rand(batch),
        "text_BLD": torch.randn(batch, text_tokens, text_dim),
        "text_mask_BL": torch.arange(text_tokens)[None] < torch.tensor([3, 4])[:batch, None],
        "fps_B": torch.full((batch,), 24.0),
    }


@pytest.mark.parametrize("changes", [{}, {"modulation_rank": 8}, COSMOS | ALL], ids=["plain", "low rank", "all"])
def test_every_block_is_the_identity_and_the_output_zero_at_the_start(changes):
    model, given = tiny(**changes), inputs()
    x = torch.randn(2, 12, 48)
    context = model.context(**given)
    anything = torch.randn_like(
        context.conditioning_NA[:, :48]
    )  # but for what blocks of low rank share, which is 0 yet
    context = dataclasses.replace(context, conditioning_NA=torch.cat([anything, context.conditioning_NA[:, 48:]], 1))
    placed = x if context.places_SD is None else x + context.places_SD
    torch.testing.assert_close(model.blocks[0](x, context), placed, rtol=0, atol=0)
    assert not model(**given).any()


def test_factors_of_a_low_rank_do_not_both_begin_at_zero_else_neither_would_learn():
    model, given = tiny(modulation_rank=8), inputs()
    with torch.no_grad():
        model.out.weight.normal_()
    model(**given).square().sum().backward()
    block = model.blocks[0].modulation
    assert all(down.weight.any() and not up.weight.any() for down, up in zip(block.down, block.up, strict=True))
    assert all(up.weight.grad.any() for up in block.up) and model.noise_embedding.shared.weight.grad.any()


def test_a_modulation_of_low_rank_is_the_product_of_its_factors_and_what_all_blocks_share():
    model = awake(tiny(modulation_rank=8))
    vector_B4D = model.conditioning(
        noise_levels(torch.rand(2), 2, (1, 1, 1), None), torch.zeros(2, 1, 16), torch.zeros(2, 1, dtype=torch.bool)
    )
    assert vector_B4D.shape == (2, 4 * 48)
    modulation = model.blocks[1].modulation
    whole = torch.block_diag(*(up.weight for up in modulation.up)) @ torch.cat([d.weight for d in modulation.down])
    expected = vector_B4D[:, :48] @ whole.T + vector_B4D[:, 48:].repeat(1, 3)
    torch.testing.assert_close(torch.cat(modulation(vector_B4D), 2)[:, 0], expected)
    last = model.modulation
    expected = vector_B4D[:, :48] @ (last.up[0].weight @ last.down[0].weight).T + vector_B4D[:, 48 : 3 * 48]
    torch.testing.assert_close(torch.cat(last(vector_B4D), 2)[:, 0], expected)


def test_learned_positions_have_unit_scale_tell_places_apart_and_a_video_beyond_them_is_refused():
    model, given = tiny(**COSMOS), inputs(size=(2, 4, 6))
    places_SD = model.context(**given).places_SD
    torch.testing.assert_close(places_SD.square().mean(1), torch.ones(12), rtol=1e-3, atol=0)
    tables = model.learned_positions
    last = tables.frames[1] + tables.rows[1] + tables.columns[2]
    torch.testing.assert_close(places_SD[11], last / last.square().mean().sqrt(), rtol=1e-3, atol=1e-5)
    with pytest.raises(ValueError, match=r"a video of \(2, 2, 5\) tokens .* is larger than .* \(4, 4, 4\)"):
        model(**inputs(size=(2, 4, 10)))


def test_weights_follow_from_the_seed_and_the_name_of_the_parameter():
    torch.manual_seed(1)
    first, deeper = tiny().state_dict(), tiny(depth=3).state_dict()
    for name, value in first.items():
        torch.testing.assert_close(value, deeper[name], rtol=0, atol=0)
    model = tiny()
    draw_weights(model, model.initial_weight, 99)
    assert not torch.equal(model.state_dict()["blocks.0.mlp.up.weight"], first["blocks.0.mlp.up.weight"])


def test_a_model_can_be_born_on_the_meta_device_and_be_filled_later():
    reference = tiny()
    with torch.device("meta"):
        model = DiT(in_channels=4, text_dim=16, width=48, depth=2, heads=2)
    model.to_empty(device="cpu")
    draw_weights(model, model.initial_weight, 3)
    for name, value in reference.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value, rtol=0, atol=0)


@pytest.mark.parametrize("text_in_modulation", [False, True])
def test_an_empty_text_mask_gives_finite_outputs_and_gradients_and_lets_no_text_through(text_in_modulation):
    model, given = awake(tiny(text_in_modulation=text_in_modulation)), inputs()
    given["text_mask_BL"] = torch.zeros(2, 5, dtype=torch.bool)
    output = model(**given)
    output.square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    torch.testing.assert_close(model(**given | {"text_BLD": torch.randn(2, 5, 16)}), output)


def test_attention_is_never_asked_for_a_softmax_over_nothing():
    mask_BL = torch.tensor([[False, False], [True, False]])
    text, seen_B11L = mask_text(torch.ones(2, 2, 16), mask_BL)
    assert seen_B11L[:, 0, 0].tolist() == [[True, True], [True, False]]
    assert not text[0].any() and text[1, 0].any()


@pytest.mark.parametrize("text_in_modulation", [False, True])
def test_hidden_text_tokens_have_no_influence_and_seen_ones_do(text_in_modulation):
    model, given = awake(tiny(text_in_modulation=text_in_modulation)), inputs()
    hidden, seen = given["text_BLD"].clone(), given["text_BLD"].clone()
    hidden[0, 3:], seen[0, 2] = 9.0, 9.0
    output = model(**given)
    torch.testing.assert_close(model(**given | {"text_BLD": hidden}), output)
    assert not torch.allclose(model(**given | {"text_BLD": seen})[0], output[0], atol=1e-3)


def test_samples_of_a_batch_do_not_see_each_other():
    model, given = awake(tiny()), inputs()
    alone = model(**{name: value[1:] for name, value in given.items()})
    torch.testing.assert_close(model(**given)[1:], alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["noise_B", "fps_B"])
def test_noise_level_and_frame_rate_change_the_output(name):
    model, given = awake(tiny()), inputs()
    assert not torch.allclose(model(**given), model(**given | {name: given[name] * 0.5}), atol=1e-3)


@pytest.mark.parametrize("changes", [{}, COSMOS], ids=["plain", "cosmos"])
def test_all_parameters_get_a_gradient_once_nothing_is_zero(changes):
    model = awake(tiny(**ALL, **changes))
    model(**inputs()).square().sum().backward()
    assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()] == []


@pytest.mark.parametrize(("changes", "words"), [
    ({"channels": 5}, "latents have 5 channels and the model was built for 4"),
    ({"text_dim": 8}, "text tokens are 8 wide and the model was built for 16"),
    ({"size": (2, 5, 6)}, "height 5 is not divisible by 2"),
])  # fmt: skip
def test_inputs_that_do_not_fit_are_named_with_their_numbers(changes, words):
    with pytest.raises(ValueError, match=words):
        tiny()(**inputs(**changes))


@pytest.mark.parametrize(("changes", "words"), [
    ({"width": 50, "heads": 4}, "width 50 is not divisible by heads 4"),
    ({"width": 8, "heads": 2}, "head dimension 4 cannot be split over three axes"),
    ({"patch": (1, 0, 2)}, "patch must be three sizes of 1 to 256"),
    ({"in_channels": 0}, "in_channels must be at least 1, got 0"),
    ({"modulation_rank": 0}, "modulation_rank must be at least 1, got 0"),
    ({"width": 45, "heads": 3, "modulation_rank": 8}, "head dimension 15 cannot|width 45 is odd"),
    ({"learned_positions": (4, 0, 4)}, "learned_positions.1 must be at least 1, got 0"),
])  # fmt: skip
def test_numbers_that_do_not_fit_are_refused_by_the_constructor(changes, words):
    with pytest.raises(ValueError, match=words):
        tiny(**changes)


@pytest.mark.parametrize("changes", [{}, COSMOS], ids=["plain", "cosmos"])
def test_every_name_in_the_plan_exists_and_every_block_linear_is_in_it(changes):
    model = tiny(**ALL, **changes)
    assert isinstance(model, Divisible)
    modules, plan = dict(model.named_modules()), model.plan()
    for pattern in plan.patterns():
        assert match_modules(pattern, modules), f"{pattern} names nothing"
    assert isinstance(modules[plan.blocks], torch.nn.ModuleList)
    cut = {name for pattern in (*plan.column, *plan.row) for name in match_modules(pattern, modules)}
    linears = {n for n, m in modules.items() if n.startswith("blocks.") and isinstance(m, torch.nn.Linear)}
    assert linears - cut == {name for name in linears if ".modulation." in name}
    top = {name.split(".")[0] for name in modules if name}
    assert top == {plan.blocks, *plan.first, *plan.last, *plan.every}


@pytest.mark.parametrize("changes", [{}, {"text_in_modulation": True}, {"position_embedding": True}, COSMOS | ALL])
def test_the_declared_cost_is_what_torch_counts(changes):
    model, given = tiny(**changes), inputs()
    # torch counts no FLOPs for the CPU's flash attention, but does for the products of the plain form.
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        model(**given)
    assert isinstance(model, ReportsFlops)
    declared = sum(op.flops for op in model.ops({name: tuple(value.shape) for name, value in given.items()}))
    assert declared == pytest.approx(counter.get_total_flops(), rel=1e-9)


def test_heads_split_over_two_parts_add_up_to_the_whole():
    """What tensor parallel does: rows of the column linears and columns of the row linears, in whole heads."""
    module = awake(tiny()).blocks[0].self_attention
    x, rope = torch.randn(1, 12, 48), tiny().rope.table((2, 2, 3), torch.tensor([24.0]))
    whole, parts = module(x, *rope), []
    qkv, out = module.qkv.weight.detach(), module.out.weight.detach()
    for part in range(2):
        module.qkv.weight = torch.nn.Parameter(qkv.chunk(2)[part])
        module.out.weight = torch.nn.Parameter(out.chunk(2, dim=1)[part])
        parts.append(module(x, *rope))
    torch.testing.assert_close(parts[0] + parts[1], whole, rtol=1e-4, atol=1e-5)


def test_each_of_two_experts_begins_as_it_does_by_itself():
    high, low = tiny(), awake(tiny())
    low.initial_weight = lambda name, shape, seed: torch.full(shape, float(seed))
    both = NoiseExperts(high=high, low=low, boundary=0.9)
    for name, parameter in both.named_parameters():
        network = high if name.startswith("high.") else low
        expected = network.initial_weight(name.partition(".")[2], parameter.shape, 7)
        assert torch.equal(both.initial_weight(name, parameter.shape, 7), expected), name


@pytest.mark.usefixtures("fast_bf16")
def test_a_step_under_bf16_autocast_is_close_to_fp32():
    model, given = awake(tiny()), inputs()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = model(**given)
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(output.float(), model(**given), rtol=0.1, atol=0.1)
