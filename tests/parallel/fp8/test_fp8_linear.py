"""Tests linears in FP8: their three products, the history of delayed scaling, and what is refused."""

import copy
import math
import weakref
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from nemo_vfm.core.fp8 import DIVISOR, RECIPES, Fp8, Recipe
from nemo_vfm.parallel.engine.history_updater import HistoryUpdater
from nemo_vfm.parallel.fp8 import operands
from nemo_vfm.parallel.fp8.amax_history import ROLES, AmaxHistory
from nemo_vfm.parallel.fp8.fp8_linear import Fp8Linear, require_divisible, to_fp8
from nemo_vfm.parallel.fp8.fp8_product import emulated_product, native_product
from nemo_vfm.parallel.fp8.operand_stats import OperandStats
from nemo_vfm.parallel.fp8.quantise import E4M3, E5M2, Fp8Tensor, dequantise, quantise

EACH_RECIPE = pytest.mark.parametrize("recipe", RECIPES)
GRANULARITY = {"current": "tensor", "rowwise": "row", "block": "1x128", "mxfp8": "mx"}


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def linear(recipe: Recipe, **values: object) -> Fp8Linear:
    found = to_fp8(nn.Linear(256, 128), Fp8(recipe=recipe, **values))
    with torch.no_grad():
        found.weight.copy_(numbers(128, 256, seed=1) / 16)
        found.bias.copy_(numbers(128, seed=2))
    return found


def by_hand(recipe: Recipe, x: Tensor, role: str, dtype: torch.dtype = E4M3) -> Tensor:
    """A matrix as the product over its last dimension sees it."""
    granularity = "128x128" if recipe == "block" and role == "weight" else GRANULARITY[recipe]
    return dequantise(quantise(x, granularity, dtype, pow2=recipe == "block"))


@pytest.mark.parametrize("recipe", [recipe for recipe in RECIPES if recipe != "delayed"])
def test_each_product_quantises_its_operands_along_its_own_sum(recipe: Recipe) -> None:
    layer, x, grad = linear(recipe), numbers(2, 64, 256).requires_grad_(), numbers(2, 64, 128, seed=3) * 1e-4
    y = layer(x)
    y.backward(grad)
    rows, grads, weight = x.detach().flatten(0, 1), grad.flatten(0, 1), layer.weight.detach()
    wide = E4M3 if recipe in ("block", "mxfp8") else E5M2
    torch.testing.assert_close(
        y.detach().flatten(0, 1), by_hand(recipe, rows, "input") @ by_hand(recipe, weight, "weight").T + layer.bias,
    )  # fmt: skip
    torch.testing.assert_close(
        x.grad.flatten(0, 1), by_hand(recipe, grads, "gradient", wide) @ by_hand(recipe, weight.T, "weight").T
    )
    torch.testing.assert_close(
        layer.weight.grad, by_hand(recipe, grads.T, "gradient", wide) @ by_hand(recipe, rows.T, "input").T
    )
    torch.testing.assert_close(layer.bias.grad, grads.sum(0))


@EACH_RECIPE
def test_it_is_near_the_linear_in_float32_and_no_nearer_than_fp8_can_be(recipe: Recipe) -> None:
    layer, x = linear(recipe), numbers(128, 256)
    for _ in range(2):  # delayed scaling knows nothing in its first step
        found = layer(x)
        HistoryUpdater(layer, None).apply()
    exact = F.linear(x, layer.weight, layer.bias)
    error = (found - exact).norm() / exact.norm()
    assert 0.005 < error < 0.05


def test_delayed_scaling_uses_the_largest_amax_of_the_steps_before() -> None:
    layer, history = linear("delayed", history=3), []
    for step, size in enumerate([1.0, 4.0, 2.0, 1.0, 1.0, 1.0]):
        history.append(layer.history.factor[0].item())
        x = torch.full((16, 256), size)
        layer(x).sum().backward()
        assert layer.history.amax[0, 0] == size, step
        HistoryUpdater(layer, None).apply()
    # Of a step, its own amax and the two before; the first step had none.
    assert history == [1, 448, 112, 112, 112, 224]
    assert layer.history.factor[1] == torch.tensor(448.0) / layer.weight.detach().abs().max()
    assert layer.history.factor[2] == 57344


def test_a_recomputed_forward_pass_adds_no_entry_and_validation_none_at_all() -> None:
    plain, again = linear("delayed", history=4), linear("delayed", history=4)
    for step in range(3):
        x = numbers(32, 256, seed=step).requires_grad_()
        y = x.detach().clone().requires_grad_()
        plain(x).square().sum().backward()
        checkpoint(again, y, use_reentrant=False).square().sum().backward()
        assert torch.equal(x.grad, y.grad)
        for layer in (plain, again):
            HistoryUpdater(layer, None).apply()
    again.eval()
    again(numbers(32, 256) * 100)
    assert torch.equal(plain.history.amax, again.history.amax)
    assert torch.equal(plain.history.factor, again.history.factor)


def test_a_resumed_training_goes_on_bit_by_bit() -> None:
    whole = linear("delayed", history=4)

    def step(layer: Fp8Linear, number: int) -> Tensor:
        layer.zero_grad()
        layer(numbers(32, 256, seed=number) * (1 + number)).square().mean().backward()
        HistoryUpdater(layer, None).apply()
        return layer.weight.grad.clone()

    for number in range(3):
        step(whole, number)
    resumed = linear("delayed", history=4)
    resumed.history = copy.deepcopy(whole.history)
    fresh = linear("delayed", history=4)
    for number in range(3, 6):
        expected = step(whole, number)
        assert torch.equal(step(resumed, number), expected)
        assert number > 3 or not torch.equal(step(fresh, number), expected), "without its history it is another one"


@pytest.mark.parametrize(("form", "most"), [(None, 57344), ("hybrid", 57344), ("e4m3", 448)])
def test_a_delayed_factor_fills_the_range_of_the_format_of_each_operand(form: Any, most: int) -> None:
    history = AmaxHistory(Fp8(recipe="delayed", history=1, format=form))
    for role in ROLES:
        history.see(role, torch.tensor(2.0))
    history.close_step()
    assert history.factor.tolist() == [448 / 2, 448 / 2, most / 2]


@pytest.mark.parametrize("amax", [0.0, math.inf, math.nan])
def test_a_factor_stays_where_an_amax_says_nothing(amax: float) -> None:
    history = AmaxHistory(Fp8(recipe="delayed", history=1, margin=1))
    history.see("input", torch.tensor(2.0))
    history.close_step()
    assert history.factor.tolist() == [448 / 2 / 2, 1, 1]
    history.see("input", torch.tensor(amax))
    history.close_step()
    assert history.factor.tolist() == [448 / 2 / 2, 1, 1]


def test_a_step_that_was_left_out_is_forgotten() -> None:
    layer = linear("delayed")
    layer(torch.full((16, 256), math.inf))
    HistoryUpdater(layer, None).discard()
    layer(torch.full((16, 256), 2.0))
    HistoryUpdater(layer, None).apply()
    assert layer.history.factor[0] == 224


@pytest.mark.parametrize("granularity", ["tensor", "row"])
@pytest.mark.parametrize("first", [E4M3, E5M2])
def test_emulation_is_scaled_mm_up_to_the_order_of_sums(granularity: str, first: torch.dtype) -> None:
    a, b = quantise(numbers(48, 512), granularity, first), quantise(numbers(64, 512, seed=1), granularity)
    found, native = emulated_product(a, b), native_product(a, b, fast=False)
    assert (found - native).abs().max() <= 1e-6 * found.abs().max()
    wrong = emulated_product(a, Fp8Tensor(b.elements, b.scale * 1.001))
    assert (wrong - native).abs().max() > 1e-4 * found.abs().max()


@pytest.mark.parametrize("granularity", ["tensor", "row"])
def test_the_hardwares_product_does_not_break_a_compiled_graph(granularity: str) -> None:
    """On the meta device: torch 2.11 has no such product for a CPU."""
    a, b = quantise(numbers(48, 512), granularity), quantise(numbers(64, 512, seed=1), granularity)
    on_meta = [Fp8Tensor(one.elements.to("meta"), one.scale.to("meta")) for one in (a, b)]
    compiled = torch.compile(partial(native_product, fast=False), backend="aot_eager", fullgraph=True)
    assert compiled(*on_meta).shape == (48, 64)


def test_one_block_of_128_is_no_scale_of_a_row() -> None:
    x, weight = numbers(128, 128), numbers(256, 128, seed=1)
    a, b = quantise(x, "1x128"), quantise(weight, "128x128")
    assert b.scale.shape == (2, 1)
    torch.testing.assert_close(emulated_product(a, b), dequantise(a) @ dequantise(b).T)
    with pytest.raises(ValueError, match="no matmul for scales of row and 128x128"):
        native_product(a, b, fast=False)


def test_autocast_sets_the_dtype_of_operands_and_results_and_no_sum_is_in_bf16() -> None:
    layer, x = linear("current"), numbers(32, 256)
    with torch.autocast("cpu", torch.bfloat16):
        found = layer(x)
    rows, weight = quantise(x.bfloat16(), "tensor"), quantise(layer.weight.bfloat16(), "tensor")
    expected = (dequantise(rows) @ dequantise(weight).T).bfloat16() + layer.bias.bfloat16()
    assert found.dtype == torch.bfloat16 and (found != expected).float().mean() < 0.01, "a sum's order may round apart"


@EACH_RECIPE
def test_sizes_that_products_cannot_have_are_refused_with_what_would_do(recipe: Recipe) -> None:
    need = DIVISOR[recipe]
    other = "take recipe=current" if need > 16 else "stay in bf16"
    message = f"up has {need + need // 2} out_features .* multiples of {need}; .* or {other}"
    with pytest.raises(ValueError, match=message):
        require_divisible(Fp8(recipe=recipe), "up", in_features=need, out_features=need + need // 2)


@EACH_RECIPE
def test_any_number_of_tokens_will_do(recipe: Recipe) -> None:
    layer, x, grad = linear(recipe), numbers(3, 7, 256), numbers(3, 7, 128, seed=3)
    padded = [torch.zeros(128, n) for n in (256, 128)]
    padded[0][:21], padded[1][:21] = x.flatten(0, 1), grad.flatten(0, 1)
    y = layer(x)
    y.backward(grad)
    found, layer = (y.detach().flatten(0, 1), layer.weight.grad, layer.bias.grad), linear(recipe)
    expected = layer(padded[0])
    expected.backward(padded[1])
    assert torch.equal(found[0], expected[:21].detach())
    torch.testing.assert_close(found[1:], (layer.weight.grad, layer.bias.grad), rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"recipe": "nvfp4"}, "recipe must be one of delayed, current"),
        ({"format": "e5m2"}, "format must be hybrid"),
        ({"recipe": "delayed", "first_bf16": 1}, "cannot keep blocks in bf16"),
        ({"recipe": "current", "margin": 1}, "margin is for recipe=delayed"),
        ({"recipe": "mxfp8", "pow2": False}, "are powers of two"),
        ({"history": 0}, "history .0. at least 1"),
    ],
)
def test_what_does_not_go_together_is_refused(values: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Fp8(**values)


@pytest.mark.parametrize(("again", "alive"), [(True, 0), (False, 1)], ids=["recomputed", "kept"])
def test_a_block_that_is_computed_again_keeps_no_quantised_input(
    again: bool, alive: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[weakref.ref[Tensor]] = []

    def noted(*arguments: object, **named: object) -> Fp8Tensor:
        found = quantise(*arguments, **named)  # type: ignore[arg-type]
        seen.append(weakref.ref(found.elements.untyped_storage()))
        return found

    monkeypatch.setattr(operands, "quantise", noted)
    layer, x = linear("rowwise"), numbers(64, 256).requires_grad_()
    y = checkpoint(layer, x, use_reentrant=False) if again else layer(x)
    assert sum(one() is not None for one in seen) == alive
    y.sum().backward()
    assert layer.weight.grad is not None


def test_the_gradient_of_a_linear_is_looked_at_also_where_its_input_has_none() -> None:
    layer = linear("current")
    layer.stats = OperandStats()
    layer(numbers(32, 256)).sum().backward()
    assert set(layer.stats.summaries()) == {"input", "weight", "gradient"}


def test_what_operands_lose_is_added_up_over_the_micro_batches_of_a_step() -> None:
    """Scales of the past saturate; each micro-batch loses other numbers."""
    layer = linear("delayed")
    layer.stats = OperandStats()
    found = []
    for size, zeros in ((2000.0, 16), (1e-4, 0), (500.0, 32)):
        x = torch.full((32, 256), size)
        x[:, :zeros] = 0
        layer(x)
        found.append(layer.stats.summaries()["input"])
    assert [one.saturated for one in found] == [32 * 240, 32 * 240, 32 * (240 + 224)]
    assert [one.flushed for one in found] == [0, 32 * 256, 32 * 256]
    assert [one.values for one in found] == [32 * 240, 32 * (240 + 256), 32 * (240 + 256 + 224)]
    assert [one.amax for one in found] == [2000.0] * 3


@pytest.mark.parametrize("recipe", ["current", "rowwise"])
def test_without_gradients_no_operand_is_quantised_columnwise(recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, asked, kept = linear(recipe), [], operands.Operands.quantise_both_ways

    def noted(self: Any, *operand: Any, columnwise: bool = False, **which: bool) -> Any:
        asked.append(columnwise)
        return kept(self, *operand, columnwise=columnwise, **which)

    monkeypatch.setattr(operands.Operands, "quantise_both_ways", noted)
    with torch.no_grad():
        layer(numbers(32, 256))
    assert asked == [False, False]
    layer(numbers(32, 256)).sum().backward()
    assert asked[2:] == [True, False, True]  # input, weight, gradient
