"""Tests that a packed sample gets what it would get alone, and what packs cost."""

import itertools
import math

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from nemo_vfm.core.latent_rows import pack_latents, unpack_latents
from nemo_vfm.core.types.task import ModelInputs
from nemo_vfm.models.blocks.video_tokens import TokenRow, noise_levels, row
from nemo_vfm.models.st_dit import STDiT
from nemo_vfm.parallel.layers.token_layout import TokenLayout, under
from tests.support.packs import COSMOS, PLAIN, UNSURE, tiny

SIZES = [(1, 4, 8), (3, 4, 4), (1, 2, 2), (2, 6, 4)]  # 8, 12, 1 and 12 tokens


def given(sizes=SIZES, dtype=torch.float32):
    """A set of inputs for each sample, and the same packed."""
    torch.manual_seed(0)
    each = [
        {
            "latents_BCTHW": torch.randn(1, 4, *size, dtype=dtype), "noise_B": torch.rand(1, dtype=dtype),
            "text_BLD": torch.randn(1, 5, 16, dtype=dtype), "text_mask_BL": torch.arange(5)[None] < 1 + n,
            "fps_B": torch.tensor([8.0 + 4 * n], dtype=dtype),
        }
        for n, size in enumerate(sizes)
    ]  # fmt: skip
    packed = {name: torch.cat([one[name] for one in each]) for name in each[0] if name != "latents_BCTHW"}
    packed["latents_XC"] = torch.cat([pack_latents(one["latents_BCTHW"]) for one in each])
    return each, packed | {"sizes_N3": torch.tensor(sizes)}


@pytest.mark.parametrize("changes", [{}, PLAIN, COSMOS, UNSURE], ids=["least", "plain", "cosmos", "unsure"])
def test_each_sample_gets_what_it_gets_alone(changes):
    each, packed = given()
    model = tiny(**changes)
    found = unpack_latents(model(**packed), SIZES)
    for one, out in zip(each, found, strict=True):
        torch.testing.assert_close(out, model(**one), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["latents_XC", "noise_B", "text_BLD", "fps_B"])
def test_nothing_of_a_sample_reaches_another_and_everything_reaches_its_own(name):
    _, packed = given()
    model = tiny(**PLAIN)
    changed = {**packed, name: packed[name].clone()}
    where = slice(32, 80) if name == "latents_XC" else slice(1, 2)  # of the second sample
    changed[name][where] *= 1.5
    before, after = (unpack_latents(model(**one), SIZES) for one in (packed, changed))
    assert [torch.equal(one, other) for one, other in zip(before, after, strict=True)] == [True, False, True, True]


def test_a_pack_of_one_sample_is_that_sample():
    each, packed = given(SIZES[1:2])
    model = tiny(**PLAIN)
    (alone,) = unpack_latents(model(**packed), SIZES[1:2])
    torch.testing.assert_close(alone, model(**each[0]))


def test_rows_are_samples_with_time_slowest_and_width_fastest():
    latents = torch.arange(2 * 3 * 2 * 2 * 3.0).reshape(2, 3, 2, 2, 3)
    rows = pack_latents(latents)
    assert rows.shape == (24, 3) and rows[1].tolist() == latents[0, :, 0, 0, 1].tolist()
    assert rows[12 + 6 + 3].tolist() == latents[1, :, 1, 1, 0].tolist()
    assert all(
        torch.equal(one, other)
        for one, other in zip(unpack_latents(rows, [(2, 2, 3)] * 2), latents.split(1), strict=True)
    )


def test_padding_stands_at_the_end_alone_and_each_rank_knows_whose_its_tokens_are():
    class Ranks:
        def __init__(self, rank: int) -> None:
            self.rank, self.size = lambda: rank, lambda: 4

    spans, samples = [], []
    for rank in range(4):
        group = Ranks(rank)
        with under(TokenLayout(group, group)):  # type: ignore[arg-type]
            found = row(torch.tensor(SIZES), sum(map(math.prod, SIZES)), (1, 2, 2), torch.device("cpu"))
            assert found.segments == (8, 12, 1, 12, 3)
            spans.append(found.spans())
            samples += found.sample_S.tolist()
    assert samples == [0] * 8 + [1] * 12 + [2] + [3] * 15
    assert spans == [[(0, (0, 8)), (1, (8, 9))], [(1, (0, 9))], [(1, (0, 2)), (2, (2, 3)), (3, (3, 9))], [(3, (0, 9))]]


def test_what_modulates_a_sample_gets_the_sum_of_its_tokens_gradients():
    found = TokenRow(((1, 2, 4), (1, 2, 6)), ((1, 1, 2), (1, 1, 3)), 0, torch.tensor([0, 0, 1, 1, 1]))
    levels = noise_levels(torch.tensor([0.1, 0.2]), 2, (1, 1, 5), found)
    torch.manual_seed(0)
    x = torch.randn(2, 1, 3, dtype=torch.float64, requires_grad=True)
    assert torch.equal(levels.by_token([x])[0][0], x[[0, 0, 1, 1, 1], 0])
    assert torch.autograd.gradcheck(lambda x: levels.by_token([x]), x)


def test_the_declared_cost_of_a_pack_is_that_of_its_samples():
    each, packed = given()
    model = tiny(depth=3, **COSMOS)
    shapes = [ModelInputs(inputs, {}, torch.ones(1)).shapes() for inputs in (*each, packed)]
    costs = [{op.name: op.flops for op in model.ops(one)} for one in shapes]
    for name, flops in costs[-1].items():
        assert flops == pytest.approx(sum(cost[name] for cost in costs[:-1]), rel=1e-12)
    with FlopCounterMode(display=False) as counter:
        model(**packed)
    linear = sum(op.flops for op in model.ops(shapes[-1]) if op.kind == "linear")
    assert linear == pytest.approx(counter.get_total_flops(), rel=1e-9), "torch counts no flash attention of a CPU"


def test_sizes_that_are_not_those_of_the_latents_are_refused_with_the_numbers():
    _, packed = given()
    with pytest.raises(ValueError, match=r"4 packed samples of sizes .* have 132 positions, and 131 were given"):
        tiny()(**packed | {"latents_XC": packed["latents_XC"][1:]})
    _, odd = given([(1, 4, 4), (1, 3, 4)])
    with pytest.raises(ValueError, match="height 3 is not divisible by 2"):
        tiny()(**odd)
    with pytest.raises(ValueError, match="latents have 4 channels and the model was built for 3"):
        tiny(in_channels=3)(**packed)


def test_a_model_that_looks_along_time_says_why_it_takes_no_packs():
    _, packed = given()
    with pytest.raises(ValueError, match="packed samples have no frames and places in common"):
        STDiT(in_channels=4, text_dim=16, width=48, depth=1, heads=4)(**packed)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_the_order_in_a_pack_changes_nothing(order):
    model = tiny(**PLAIN)
    each, _ = given(SIZES[:3])
    chosen = [each[n] for n in order]
    packed = {name: torch.cat([one[name] for one in chosen]) for name in each[0] if name != "latents_BCTHW"}
    packed["latents_XC"] = torch.cat([pack_latents(one["latents_BCTHW"]) for one in chosen])
    sizes = [SIZES[n] for n in order]
    for n, out in zip(order, unpack_latents(model(**packed, sizes_N3=torch.tensor(sizes)), sizes), strict=True):
        torch.testing.assert_close(out, model(**each[n]), rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("fast_bf16")
def test_a_pack_under_bf16_autocast_is_close_to_its_samples():
    each, packed = given()
    model = tiny(**PLAIN)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = model(**packed)
        alone = torch.cat([pack_latents(model(**one)) for one in each])
        output.float().square().mean().backward()
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(output, alone, rtol=0.05, atol=0.05)
    torch.testing.assert_close(output.float(), model(**packed), rtol=0.1, atol=0.1)
