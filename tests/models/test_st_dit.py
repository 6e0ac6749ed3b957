"""Tests which tokens each token of the ST-DiT sees, and its plan, its cost and the sizes of its presets."""

import pytest
import torch
import yaml
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from nemo_vfm.models.blocks.layers import rotate
from nemo_vfm.models.st_dit import STDiT
from nemo_vfm.parallel.layers.parallel_attention import attention
from nemo_vfm.parallel.plan.sharding_spec import match_modules
from tests.support.repository import ROOT

GRID = (3, 2, 4)


def tiny(**changes):
    torch.manual_seed(3)
    return STDiT(
        **{"in_channels": 4, "text_dim": 16, "width": 48, "depth": 2, "heads": 2, "modulation_rank": 8} | changes
    )


def awake(model):
    """A model whose zeros are gone, so that everything has an influence."""
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def inputs():
    torch.manual_seed(7)
    return {
        "latents_BCTHW": torch.randn(2, 4, 3, 4, 8), "noise_B": torch.rand(2), "text_BLD": torch.randn(2, 5, 16),
        "text_mask_BL": torch.ones(2, 5, dtype=torch.bool), "fps_B": torch.tensor([12.0, 24.0]),
    }  # fmt: skip


def same(axes):
    """Which of a video's tokens stand at the same place along these axes, (S, S)."""
    place = torch.stack(torch.meshgrid(*map(torch.arange, GRID), indexing="ij"), -1).reshape(-1, 3)[:, axes]
    return (place[:, None] == place[None]).all(-1)


@pytest.mark.parametrize(("reach", "axes"), [("temporal", [1, 2]), ("spatial", [0])])
def test_an_attention_of_runs_is_full_attention_with_all_others_hidden(reach, axes):
    """With the rotations of the whole video: those of axes that query and key have in common cancel."""
    model = awake(tiny())
    context, x = model.context(**inputs()), torch.randn(2, 24, 48)
    module = model.blocks[0].attentions[reach]
    q, k, v = module.qkv(x).unflatten(2, (-1, 3, 24)).unbind(3)
    cos, sin = context.rope
    q, k = rotate(module.q_norm(q), cos, sin), rotate(module.k_norm(k), cos, sin)
    o = attention(*(one.transpose(1, 2) for one in (q, k, v)), same(axes))
    expected = module.out(o.transpose(1, 2).flatten(2))
    found = model.blocks[0]._attend(reach, x, model.space_time(context))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def reached(*reaches):
    """From which tokens the first one of the first sample has something after one block with these attentions."""
    model = awake(tiny(depth=1, reaches=reaches))
    x = torch.randn(2, 24, 48, requires_grad=True)
    update = model.blocks[0](x, model.space_time(model.context(**inputs())))
    (gradient,) = torch.autograd.grad(update[0, 0].sum(), x)
    assert not gradient[1].any(), "samples do not see each other"
    return gradient[0].any(dim=1)


def test_a_token_is_reached_along_its_line_across_its_frame_and_by_both_from_everywhere():
    assert torch.equal(reached("temporal"), same([1, 2])[0])
    assert torch.equal(reached("spatial"), same([0])[0])
    assert reached("temporal", "spatial").all() and reached("full").all()


def test_every_block_is_the_identity_and_the_output_zero_at_the_start():
    model, given = tiny(), inputs()
    x = torch.randn(2, 24, 48)
    told = model.space_time(model.context(**given))
    torch.testing.assert_close(model.blocks[0](x, told), x, rtol=0, atol=0)
    assert not model(**given).any()


def test_all_parameters_get_a_gradient_once_nothing_is_zero():
    model = awake(tiny(text_in_modulation=True, uncertainty=True, learned_positions=(4, 4, 4)))
    model(**inputs()).square().sum().backward()
    assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()] == []


def test_the_frame_rate_changes_what_is_seen_along_time():
    model, given = awake(tiny(reaches=("temporal",))), inputs()
    assert not torch.allclose(model(**given), model(**given | {"fps_B": 0.5 * given["fps_B"]}), atol=1e-3)


def test_every_name_in_the_plan_exists_and_every_block_linear_is_in_it():
    model = tiny(text_in_modulation=True, uncertainty=True, learned_positions=(4, 4, 4))
    modules, plan = dict(model.named_modules()), model.plan()
    for pattern in plan.patterns():
        assert match_modules(pattern, modules), f"{pattern} names nothing"
    cut = {name for pattern in (*plan.column, *plan.row) for name in match_modules(pattern, modules)}
    linears = {n for n, m in modules.items() if n.startswith("blocks.") and isinstance(m, torch.nn.Linear)}
    assert linears - cut == {name for name in linears if ".modulation." in name}
    norms = {name for pattern in plan.per_head for name in match_modules(pattern, modules)}
    assert len(norms) == 2 * 4 * 2, "of queries and keys, in three attentions and the text's, of two blocks"


@pytest.mark.parametrize("reaches", [("full", "temporal", "spatial"), ("spatial", "temporal"), ("full",)])
@pytest.mark.parametrize("rank", [8, None])
def test_the_declared_cost_is_what_torch_counts(reaches, rank):
    model, given = tiny(reaches=reaches, modulation_rank=rank), inputs()
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        model(**given)
    declared = sum(op.flops for op in model.ops({name: tuple(value.shape) for name, value in given.items()}))
    assert declared == pytest.approx(counter.get_total_flops(), rel=1e-9)


@pytest.mark.parametrize("reaches", [(), ("full", "full")])
def test_reaches_that_are_none_or_twice_are_refused(reaches):
    with pytest.raises(ValueError, match="reaches must name full, temporal or spatial, each at most once"):
        tiny(reaches=reaches)


@pytest.mark.parametrize(("name", "depth", "width", "billions"), [
    ("st_dit_7b", 18, 4096, 7.3), ("st_dit_12b", 20, 5120, 12.4),
])  # fmt: skip
def test_a_preset_has_the_parameters_that_a_closed_form_gives(name, depth, width, billions):
    preset = yaml.safe_load((ROOT / f"conf/model/{name}.yaml").read_text())
    assert preset.pop("_target_") == f"{STDiT.__module__}.{STDiT.__qualname__}"
    left = {"in_channels": 16, "text_dim": 1024}
    assert all(preset[key] == "???" for key in left)
    with torch.device("meta"):
        model = STDiT(**preset | left)
    assert (model.depth, model.width, model.rope.head_dim) == (depth, width, 128)
    block = 22 * width**2 + 2 * 1024 * width + 8 * 128 + 20 * width * 256
    ends = (16 * 4 + 1) * width + 16 * 4 * (width + 1)
    found = sum(parameter.numel() for parameter in model.parameters())
    assert found == depth * block + width + 4 * width**2 + 3 * width * 256 + ends
    assert found / 1e9 == pytest.approx(billions, abs=0.1)


@pytest.mark.parametrize(("name", "grid", "implied"), [
    ("st_dit_7b", (32, 28, 40), 39.9), ("st_dit_7b", (32, 48, 48), 41.4),
    ("st_dit_12b", (32, 28, 40), 70.1), ("st_dit_12b", (32, 48, 48), 72.1),
])  # fmt: skip
def test_products_per_token_but_for_full_attention_are_those_that_the_papers_table_implies(name, grid, implied):
    """TFLOP/s over tokens/s of arXiv 2503.12964, table 2, in GFLOP of a training step."""
    preset = yaml.safe_load((ROOT / f"conf/model/{name}.yaml").read_text())
    del preset["_target_"]
    with torch.device("meta"):
        model = STDiT(**preset | {"in_channels": 16, "text_dim": 1024})
    tokens = grid[0] * grid[1] * grid[2]
    inputs = {"latents_BCTHW": (1, 16, grid[0], 2 * grid[1], 2 * grid[2]), "text_BLD": (1, 512, 1024)}
    flops = sum(op.flops for op in model.ops(inputs) if op.name != "full attention")
    assert 3 * flops / tokens / 1e9 == pytest.approx(implied, rel=0.04)
