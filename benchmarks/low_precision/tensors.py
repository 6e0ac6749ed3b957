"""Quantises seeded tensors by our code, by torchao and by a second implementation, and counts bytes that differ."""

from collections import Counter
from dataclasses import dataclass, field

import torch
from low_precision import reference
from torch import Tensor
from torchao.float8.config import ScalingGranularity
from torchao.float8.float8_utils import tensor_to_scale, to_fp8_saturated
from torchao.prototype.mx_formats.config import ScaleCalculationMode
from torchao.prototype.mx_formats.mx_tensor import to_mx

from nemo_vfm.core.fp8 import Fp8
from nemo_vfm.parallel.fp8.amax_history import AmaxHistory
from nemo_vfm.parallel.fp8.quantise import E4M3, E5M2, Fp8Tensor, Granularity, quantise, quantise_by

ROWS, COLUMNS = 128, 256
_NAMES = {E4M3: "e4m3", E5M2: "e5m2"}
_THEIRS = {"tensor": ("TENSORWISE", None), "row": ("AXISWISE", -1)}
_LEAST = 1e-12  # torchao takes no smaller amax


@dataclass
class Differing:
    """Bytes that differ by way of scaling, how many were compared, and numbers left out as corners."""

    differing: Counter[str] = field(default_factory=Counter)
    compared: Counter[str] = field(default_factory=Counter)
    corners: Counter[str] = field(default_factory=Counter)

    def add(self, way: str, ours: Tensor, theirs: Tensor) -> None:
        """Two tensors of bytes; what is no number may be any of the codes for that."""
        self.differing[way] += int((ours != theirs).sum())
        self.compared[way] += ours.numel()


def seeded(number: int) -> Tensor:
    """(128, 256): of all sizes, with every special value in turn."""
    random = torch.Generator().manual_seed(number)
    x = torch.randn(ROWS, COLUMNS, generator=random) * 10.0 ** float(torch.randint(-9, 9, (1,), generator=random))
    place = tuple(torch.randint(size, (5,), generator=random) for size in (ROWS, COLUMNS))
    match number % 10:
        case 1:
            x[place] = torch.inf
        case 2:
            x[place] = torch.nan
        case 3:
            x[:3], x[:, -32:] = 0, 0
        case 4:
            x = x * 1e-30 * 1e-10  # subnormal
        case 5:
            x[place] *= 1e6
        case 6:  # any bits
            bits = torch.randint(-(2**31), 2**31 - 1, x.shape, generator=random, dtype=torch.int64)
            x = bits.int().view(torch.float32)
        case 7:  # midpoints and powers of two
            x = torch.randint(-512, 512, x.shape, generator=random) / 2.0 ** torch.randint(0, 8, (1,), generator=random)
        case 8:
            x = torch.full_like(x, float(x[0, 0]))
        case 9:
            x[:, 0] = -0.0
    return x if number % 2 else x.bfloat16()


def bytes_differing(count: int) -> Differing:
    """Over so many tensors."""
    found = Differing()
    for number in range(count):
        x = seeded(number)
        for dtype in (E4M3, E5M2):
            for pow2 in (False, True):
                for granularity in ("tensor", "row"):
                    _against_torchao(found, x, granularity, dtype, pow2)
                for granularity in ("1x128", "128x128"):
                    _against_reference(found, x, granularity, dtype, pow2)
            _against_mx(found, x, dtype)
        if number % 10 == 0:
            _against_delayed(found, number, E5M2 if number % 20 else E4M3)
    return found


def _against_torchao(found: Differing, x: Tensor, granularity: Granularity, dtype: torch.dtype, pow2: bool) -> None:
    theirs, dim = _THEIRS[granularity]
    factor = tensor_to_scale(
        x, dtype, scaling_granularity=ScalingGranularity[theirs], axiswise_dim=dim, round_scales_to_power_of_2=pow2
    )
    elements, ours = to_fp8_saturated(x.float() * factor, dtype), quantise(x, granularity, dtype, pow2=pow2)
    amax = x.float().abs().max() if granularity == "tensor" else x.float().abs().amax(-1, keepdim=True)
    usual = (amax >= _LEAST) & torch.isfinite(amax)
    _compare(found, f"{granularity} against torchao", ours, Fp8Tensor(elements, factor.float().reciprocal()), usual)


def _against_mx(found: Differing, x: Tensor, dtype: torch.dtype) -> None:
    scale, elements = to_mx(x, dtype, 32, ScaleCalculationMode.RCEIL)
    amax = x.float().reshape(ROWS, -1, 32).abs().amax(-1)
    theirs = Fp8Tensor(elements.reshape(x.shape), scale.reshape(amax.shape).view(torch.float8_e8m0fnu))
    mantissa = torch.frexp(amax.double() / torch.finfo(dtype).max).mantissa
    just_above = (mantissa > 0.5) & (mantissa < 0.5 * (1 + 1e-6))
    usual = (amax >= _LEAST) & torch.isfinite(amax) & ~just_above
    _compare(found, "mxfp8 against torchao", quantise(x, "mx", dtype), theirs, usual)


def _against_reference(found: Differing, x: Tensor, granularity: Granularity, dtype: torch.dtype, pow2: bool) -> None:
    rows, columns = map(int, granularity.split("x"))
    codes, scale = reference.blocks(x.float().numpy(), rows, columns, _NAMES[dtype], pow2=pow2)
    theirs = Fp8Tensor(torch.from_numpy(codes), torch.from_numpy(scale))
    _compare(found, f"{granularity} against numpy", quantise(x, granularity, dtype, pow2=pow2), theirs, None)


def _against_delayed(found: Differing, number: int, dtype: torch.dtype) -> None:
    """Six steps, gradients where the format is theirs."""
    spec = Fp8(recipe="delayed", history=1 + number % 4, margin=number % 3)
    role, history = ("gradient" if dtype == E5M2 else "input"), AmaxHistory(spec)
    theirs = reference.Delayed(_NAMES[dtype], spec.history, spec.margin)
    for step in range(6):
        x = seeded(number + step)
        history.see(role, x.abs().max())
        ours = quantise_by(x, history.factor_for(role, x.device), dtype)
        history.close_step()
        codes, scale = theirs.step(x.float().numpy())
        _compare(found, "delayed against numpy", ours, Fp8Tensor(torch.from_numpy(codes), torch.tensor(scale)), None)


def _compare(found: Differing, way: str, ours: Fp8Tensor, theirs: Fp8Tensor, usual: Tensor | None) -> None:
    """Elements and scales, apart from those of scales that are no usual ones."""
    elements, others = (_bytes(one.elements) for one in (ours, theirs))
    scales, other_scales = (one.scale.contiguous().view(torch.uint8) if one.scale.dim() else
                            one.scale.reshape(1).view(torch.uint8) for one in (ours, theirs))  # fmt: skip
    if usual is not None and not usual.all():
        found.corners[way] += int((~usual).sum())
        each = usual.reshape(-1, 1).expand(-1, scales.numel() // usual.numel()).reshape(scales.shape)
        whole = usual.repeat_interleave(elements.shape[1] // usual.shape[-1], -1) if usual.dim() else usual
        whole = whole.expand(elements.shape)
        elements, others, scales, other_scales = elements[whole], others[whole], scales[each], other_scales[each]
    found.add(way, elements, others)
    found.add(way, scales, other_scales)


def _bytes(elements: Tensor) -> Tensor:
    if elements.dtype == torch.uint8:
        return elements
    return torch.where(elements.float().isnan(), reference.NAN, elements.contiguous().view(torch.uint8))
