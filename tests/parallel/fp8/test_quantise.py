"""Tests quantising to FP8 bit by bit against a table of all numbers that a format has, and against torchao."""

import bisect
import math
from fractions import Fraction
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from nemo_vfm.parallel.fp8.quantise import E4M3, E5M2, Granularity, dequantise, factor_of, quantise, quantise_by

FORMATS = {E4M3: (4, 3), E5M2: (5, 2)}
DTYPES = pytest.mark.parametrize("dtype", FORMATS, ids=["e4m3", "e5m2"])
GRANULARITIES = pytest.mark.parametrize("granularity", ["tensor", "row", "1x128", "128x128", "mx"])


def values(dtype: torch.dtype) -> list[tuple[float, int]]:
    """The finite positive numbers of a format in order, each with its code, by the definition of the format."""
    exponent_bits, mantissa_bits = FORMATS[dtype]
    bias, found = 2 ** (exponent_bits - 1) - 1, []
    for code in range(128):
        exponent, mantissa = code >> mantissa_bits, code & (2**mantissa_bits - 1)
        if (dtype == E5M2 and exponent == 31) or code == 127:
            continue
        part = mantissa / 2**mantissa_bits
        found.append((2.0 ** (exponent - bias) * (1 + part) if exponent else 2.0 ** (1 - bias) * part, code))
    return found


def nearest(number: float, table: list[tuple[float, int]]) -> int:
    """The code of the number of the table that is nearest, of two the even one; beyond the last one, the last one."""
    sign, size = (128 if math.copysign(1, number) < 0 else 0), abs(number)
    at = bisect.bisect_left(table, (size, -1))
    near = table[max(0, at - 1) : at + 1] or [table[-1]]
    return sign | min(near, key=lambda pair: (abs(Fraction(pair[0]) - Fraction(size)), pair[1] % 2))[1]


def codes(elements: Tensor) -> list[int]:
    return elements.view(torch.uint8).flatten().tolist()


@DTYPES
def test_every_cast_is_to_the_nearest_number_or_the_largest(dtype: torch.dtype) -> None:
    table = values(dtype)
    assert table[-1][0] == torch.finfo(dtype).max
    middles = [(a + b) / 2 for (a, _), (b, _) in pairwise(table)]
    numbers = [n for n, _ in table] + middles + [math.nextafter(m, 0) for m in middles] + [table[-1][0] * 1.05, 1e30]
    x = torch.tensor([*numbers, *(-n for n in numbers)])
    one = torch.ones(())
    assert codes(quantise_by(x, one, dtype).elements) == [nearest(n, table) for n in x.tolist()]


@DTYPES
def test_infinity_becomes_the_largest_and_nan_stays(dtype: torch.dtype) -> None:
    found = quantise(torch.tensor([math.inf, -math.inf, math.nan, 1.0]), "tensor", dtype)
    most = torch.finfo(dtype).max
    assert found.scale == 1 and found.elements.float()[:2].tolist() == [most, -most] and found.elements[2].isnan()
    assert found.elements[3] == 1


@given(st.floats(min_value=2.0**-118, max_value=2.0**127, width=32), st.booleans())
def test_a_factor_is_the_quotient_rounded_once(amax: float, pow2: bool) -> None:
    exact = Fraction(448) / Fraction(amax)
    found = factor_of(torch.tensor(amax), E4M3, pow2=pow2).item()
    half_a_step = Fraction(2) ** (math.frexp(float(exact))[1] - 25)
    if pow2:
        assert math.frexp(found)[0] == 0.5 and exact / 2 < Fraction(found) <= exact + half_a_step
    else:
        assert abs(Fraction(found) - exact) <= half_a_step


def test_corners_of_factors() -> None:
    amax = torch.tensor([0.0, math.inf, math.nan, 1e-38, 1e-45])
    assert factor_of(amax, E4M3).tolist() == [1, 1, 1, torch.finfo(torch.float32).max, torch.finfo(torch.float32).max]


@GRANULARITIES
@DTYPES
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_the_error_is_half_a_step_and_quantising_again_changes_nothing(
    granularity: Granularity, dtype: torch.dtype, kind: torch.dtype
) -> None:
    x = (
        torch.randn(256, 384, generator=torch.Generator().manual_seed(1))
        * 10.0 ** torch.arange(-8, 8).repeat(16)[:, None]
    ).to(kind)
    found = quantise(x, granularity, dtype)
    assert found.elements.shape == x.shape and found.elements.dtype == dtype
    back, scale = dequantise(found), dequantise(found._replace(elements=torch.ones_like(found.elements)))
    half = 2.0 ** -(FORMATS[dtype][1] + 1)
    smallest = torch.finfo(dtype).smallest_normal * half * 2
    assert ((back - x.float()).abs() <= (x.float().abs() * half).maximum(scale * smallest) * 1.0001).all()
    if granularity == "mx":
        again = quantise(back, granularity, dtype)
        assert torch.equal(dequantise(again), back)


@GRANULARITIES
def test_shapes_of_scales(granularity: Granularity) -> None:
    shapes = {"tensor": (), "row": (256, 1), "1x128": (256, 3), "128x128": (2, 3), "mx": (256, 12)}
    assert quantise(torch.randn(256, 384), granularity).scale.shape == shapes[granularity]


@pytest.mark.parametrize("granularity", ["1x128", "128x128", "mx"])
def test_one_outlier_costs_its_own_block_alone(granularity: Granularity) -> None:
    x = torch.randn(256, 256, generator=torch.Generator().manual_seed(2))
    loud = x.clone()
    loud[5, 7] = 1e6
    plain, found = dequantise(quantise(x, granularity)), dequantise(quantise(loud, granularity))
    rows, columns = {"1x128": (1, 128), "128x128": (128, 128), "mx": (1, 32)}[granularity]
    changed = (plain != found).nonzero()
    first = (5 // rows * rows, 0)
    assert len(changed) and (changed[:, 0] < first[0] + rows).all() and (changed[:, 1] < columns).all()


@pytest.mark.parametrize("k", range(-140, 127, 7))
def test_mx_scales_round_up_at_powers_of_two_and_no_element_saturates(k: int) -> None:
    """A logarithm in float32 misses the numbers just above a power of two."""
    for step, bump in ((0, 0), (1, 1)):
        amax = torch.tensor(448 * 2.0**k if k <= 118 else 3e38)
        for _ in range(step):
            amax = torch.nextafter(amax, torch.tensor(math.inf))
        found = quantise(amax.repeat(32)[None], "mx")
        exponent = found.scale.view(torch.uint8).item()
        expected = math.ceil(math.log2(Fraction(amax.item()) / 448)) if k > 118 else k + bump
        if expected > -127:
            assert exponent == min(254, expected + 127)
            assert found.elements.float().abs().max() <= 448 and (dequantise(found) / amax - 1).abs().max() < 0.07


def test_mx_scales_of_nothing_infinity_and_nan() -> None:
    x = torch.stack([torch.zeros(32), torch.full((32,), math.inf), torch.full((32,), math.nan), torch.ones(32)])
    found = quantise(x, "mx")
    assert found.scale.view(torch.uint8).flatten().tolist() == [0, 254, 255, 119]
    assert not found.elements[0].float().any() and (found.elements[1].float() == 448).all()
    assert found.elements[2].isnan().all()


@GRANULARITIES
def test_powers_of_two_where_they_are_promised(granularity: Granularity) -> None:
    scale = quantise(torch.randn(128, 256), granularity, pow2=True).scale.float()
    assert (torch.frexp(scale).mantissa == 0.5).all()


def test_a_part_takes_the_amax_of_the_whole() -> None:
    x = torch.randn(64, 256, generator=torch.Generator().manual_seed(3))
    whole = quantise(x, "tensor")
    parts = [quantise(part, "tensor", whole=lambda _: x.abs().max()) for part in x.chunk(4)]
    assert all(part.scale == whole.scale for part in parts)
    assert codes(torch.cat([part.elements.view(torch.uint8) for part in parts])) == codes(whole.elements)
    rows = quantise(x, "row")
    halves = [quantise(part, "row", whole=lambda _: x.abs().amax(-1, keepdim=True)) for part in x.chunk(2, 1)]
    assert codes(torch.cat([half.elements.view(torch.uint8) for half in halves], 1)) == codes(rows.elements)


@pytest.mark.parametrize("shape", [(128, 100), (100, 128), (128,)])
def test_what_cannot_be_cut_into_blocks_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="cannot be cut into blocks of 128 x 128"):
        quantise(torch.randn(shape), "128x128")


@DTYPES
def test_torchao_gives_the_same_bytes(dtype: torch.dtype) -> None:
    """Apart from amax 0, infinite, NaN or below 1e-12, where it has other conventions."""
    pytest.importorskip("torchao", reason="needs the extra dev")
    from torchao.float8.config import ScalingGranularity
    from torchao.float8.float8_utils import tensor_to_scale, to_fp8_saturated
    from torchao.prototype.mx_formats.config import ScaleCalculationMode
    from torchao.prototype.mx_formats.mx_tensor import to_mx

    random = torch.Generator().manual_seed(4)
    for number in range(20):
        x = torch.randn(32, 128, generator=random) * 10.0 ** (number - 8)
        for kind in (torch.float32, torch.bfloat16):
            y = x.to(kind)
            for granularity, theirs, dim in (("tensor", "TENSORWISE", None), ("row", "AXISWISE", -1)):
                factor = tensor_to_scale(y, dtype, scaling_granularity=ScalingGranularity[theirs], axiswise_dim=dim)
                found = quantise(y, granularity, dtype)
                assert codes(found.elements) == codes(to_fp8_saturated(y.float() * factor, dtype))
                assert torch.equal(found.scale, factor.reciprocal())
            scale, elements = to_mx(y, dtype, 32, ScaleCalculationMode.RCEIL)
            found = quantise(y, "mx", dtype)
            assert codes(found.elements) == codes(elements) and codes(found.scale) == codes(scale)
