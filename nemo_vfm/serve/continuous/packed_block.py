"""Replaces blocks of a model by ones that compute the same function in fewer and quicker operations.

Activations, products with a gate and residual sums are parts of the linears; queries and keys are rotated together. So
are linears and norms of a CPU: at a token a step, a small model's time goes into reading its weights and into starting
operations. Each finds its code and its data outside the caches, where the weights have just been, and takes about 10 us
(2026-11).
Shape letters: R rows, I inputs, O outputs, D width, F outputs of the fused projection, G groups (heads of keys and
values), Q queries of a group, H heads = G Q, E head dimension, P parts of a group.
"""

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nemo_vfm.core.device import has_fast_bf16
from nemo_vfm.core.seed import generator
from nemo_vfm.models.blocks.layers import RMSNorm, RMSNorm1p, rotate_first
from nemo_vfm.models.blocks.text.decoder import CausalAttention, DecoderBlock, TextContext
from nemo_vfm.models.blocks.text.experts import ACTIVATIONS, GATES, ExpertMLP
from nemo_vfm.parallel.apply.local_shard import local
from nemo_vfm.parallel.engine.serving_ranks import sum_of_shares

After = Literal["none", "swish", "add", "mul"]


class PackedLinear(nn.Module):
    """x W^T + b with a W that only oneDNN can read.

    MKL, which torch takes for fp32, has kernels for 1, for 2 to 15 and for more rows, which differ in the last bits.
    oneDNN's rows agree from 2 rows on, and those of many matrices from 1 on. Sixteen rows of matrices that come from
    memory take 0.85 of the time (AVX-512, one thread, torch 2.13, 512 x 1408, 2026-11).

    Args:
        weight_OI: is copied.
        bias_O: None for none.
        total: adds up the products of ranks that have some inputs each; None where this one has all.
    """

    def __init__(
        self, weight_OI: Tensor, bias_O: Tensor | None = None, total: Callable[[Tensor], Tensor] | None = None
    ) -> None:
        super().__init__()
        assert bias_O is None or total is None, "a bias would be added once a rank"
        self._total = total
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight_OI.detach())
        self._bias = None if bias_O is None else bias_O.detach()
        self._doubles_one_row = False
        x_2I = torch.rand(2, weight_OI.shape[1], dtype=weight_OI.dtype, generator=generator(0, "rows"))
        self._doubles_one_row = not torch.equal(self._product(x_2I[:1]), self._product(x_2I)[:1])

    def forward(self, x: Tensor, other: Tensor | None = None, after: After = "none") -> Tensor:
        """(..., R, O) of (..., R, I); one row has the bits that it has among others.

        `other`, in the shape of the result, is for "add" and "mul", which are done in the same operation; swish is
        silu.
        """
        if self._total is not None:
            y = self._total(self._rows(x))
            assert after in ("none", "add"), "other operations do not go through a sum"
            return y if other is None else y + other
        return self._rows(x, other, after)

    def _rows(self, x: Tensor, other: Tensor | None = None, after: After = "none") -> Tensor:
        if not self._doubles_one_row or x.shape[-2] > 1:
            return self._product(x, other, after)
        other = None if other is None else torch.cat([other, other], dim=-2)
        return self._product(torch.cat([x, x], dim=-2), other, after)[..., :1, :]

    def _product(self, x: Tensor, other: Tensor | None = None, after: After = "none") -> Tensor:
        y: Tensor
        if other is None:
            y = torch.ops.mkldnn._linear_pointwise.default(x, self._weight, self._bias, after, [], "")
        else:
            y = torch.ops.mkldnn._linear_pointwise.binary(x, other, self._weight, self._bias, after)
        return y


class PackedRMSNorm(nn.Module):
    """`RMSNorm` or `RMSNorm1p` in four operations on a CPU, where torch's own takes twelve, and one on a GPU.

    With sqrt(mean(x^2) + eps) = sqrt(|x|^2 + D eps) / sqrt(D), the second root is a part of the weight.
    """

    def __init__(self, given: RMSNorm | RMSNorm1p) -> None:
        super().__init__()
        self._weight, self._eps = given.weight.detach() + isinstance(given, RMSNorm1p), given.eps
        root = math.sqrt(len(self._weight))
        self._scaled, self._least = self._weight * root, self._weight.new_tensor(math.sqrt(given.eps) * root)

    def forward(self, x: Tensor) -> Tensor:
        """Unit root mean square over the last dimension, times the weight."""
        if x.device.type != "cpu":
            return F.rms_norm(x, self._weight.shape, self._weight, self._eps)
        length: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return (x / length.hypot_(self._least)).mul_(self._scaled)


def is_packable(weight: Tensor) -> bool:
    """Whether oneDNN has quick products of this weight here."""
    if weight.device.type != "cpu" or not torch._C._has_mkldnn:
        return False
    return weight.dtype == torch.float32 or (weight.dtype == torch.bfloat16 and has_fast_bf16())


def pack_modules(model: nn.Module) -> None:
    """Replace what can be, one module at a time."""
    for name, child in list(model.named_children()):
        if (packed := _pack(child)) is None:
            pack_modules(child)
        else:
            setattr(model, name, packed)


def _pack(module: nn.Module) -> nn.Module | None:
    if isinstance(module, DecoderBlock) and is_packable(module.attention.out.weight):
        return PackedBlock(module)
    if isinstance(module, nn.Linear) and is_packable(module.weight):
        return _linear(module)
    if (
        isinstance(module, RMSNorm | RMSNorm1p) and module.weight.dtype == torch.float32
    ):  # else the order of rounding differs
        return PackedRMSNorm(module)
    return None


class PackedBlock(nn.Module):
    """A `DecoderBlock`, whose weights are copied."""

    def __init__(self, given: DecoderBlock) -> None:
        super().__init__()
        self._attention_norm, self._mlp_norm = _norm(given.attention_norm), _norm(given.mlp_norm)
        self._attention_post_norm = None if given.attention_post_norm is None else _norm(given.attention_post_norm)
        self._mlp_post_norm = None if given.mlp_post_norm is None else _norm(given.mlp_post_norm)
        self._attention = PackedAttention(given.attention)
        self._mlp: nn.Module
        if given.mlp is not None:
            self._mlp = PackedPerceptron(given.mlp)
        else:
            assert given.experts is not None, "a block has a perceptron or experts"
            pack_modules(given.experts)
            self._mlp = given.experts

    def forward(self, x_1RD: Tensor, reading: TextContext) -> Tensor:
        """(1, R, D)."""
        y: Tensor
        if self._attention_post_norm is None or self._mlp_post_norm is None:
            x_1RD = self._attention(self._attention_norm(x_1RD), reading, x_1RD)
            normed = self._mlp_norm(x_1RD)
            y = self._mlp(normed, x_1RD) if isinstance(self._mlp, PackedPerceptron) else x_1RD + self._mlp(normed)
            return y
        x_1RD = x_1RD + self._attention_post_norm(self._attention(self._attention_norm(x_1RD), reading))
        y = x_1RD + self._mlp_post_norm(self._mlp(self._mlp_norm(x_1RD)))
        return y


class PackedAttention(nn.Module):
    """The attention of a block, and the sum with what came in, if that is wanted."""

    def __init__(self, given: CausalAttention) -> None:
        super().__init__()
        self._layer, self._head_dim, self._queries = given.layer, given.head_dim, given.queries
        self._window, self._scale = given.window, given.scale
        self._qkv, self._out = _linear(given.qkv), _linear(given.out)
        self._q_norm = None if given.q_norm is None else _norm(given.q_norm)
        self._k_norm = None if given.k_norm is None else _norm(given.k_norm)

    def forward(self, x_1RD: Tensor, reading: TextContext, before_1RD: Tensor | None = None) -> Tensor:
        """(1, R, D): W_out attention(x) + what came before."""
        assert reading.cache is not None, "a server keeps keys and values"
        parts_1RGPE = self._qkv(x_1RD).view(*x_1RD.shape[:2], -1, self._queries + 2, self._head_dim)
        qk_1RGPE = parts_1RGPE[:, :, :, :-1]
        if self._q_norm is not None and self._k_norm is not None:
            normed = self._q_norm(qk_1RGPE[:, :, :, :-1]), self._k_norm(qk_1RGPE[:, :, :, -1:])
            qk_1RGPE = torch.cat(normed, dim=3)
        cos, sin = reading.rotation(self._window)
        qk_1RGPE = rotate_first(qk_1RGPE, cos[:, :, None], sin[:, :, None]).permute(0, 2, 3, 1, 4)
        q_1HRE = qk_1RGPE[:, :, :-1].flatten(1, 2)
        v_1GRE = parts_1RGPE[:, :, :, -1].transpose(1, 2)
        q_1HRE = q_1HRE if self._scale == 1 else q_1HRE * self._scale
        o_1HRE = reading.cache.attend(self._layer, q_1HRE, qk_1RGPE[:, :, -1], v_1GRE, self._window)
        update: Tensor = _linear_plus(self._out, o_1HRE.transpose(1, 2).flatten(2), before_1RD)
        return update


class PackedPerceptron(nn.Module):
    """The perceptron of a block, and the sum with what came in, if that is wanted."""

    def __init__(self, given: ExpertMLP) -> None:
        super().__init__()
        self._activation, self._is_swish = (ACTIVATIONS | GATES)[given.activation], given.activation == "swiglu"
        self._gate = None if given.gate is None else _linear(given.gate)
        self._up, self._down = _linear(given.up), _linear(given.down)

    def forward(self, x_1RD: Tensor, before_1RD: Tensor | None = None) -> Tensor:
        """(1, R, D): W_down (activation(W_gate x) * W_up x), or W_down activation(W_up x), + what came before."""
        if self._gate is None:
            hidden = self._activation(self._up(x_1RD))
        elif self._is_swish:
            hidden = self._up(x_1RD, self._gate(x_1RD, after="swish"), "mul")
        else:
            hidden = self._up(x_1RD, self._activation(self._gate(x_1RD)), "mul")
        return _linear_plus(self._down, hidden, before_1RD)


def _linear_plus(linear: PackedLinear, x: Tensor, before: Tensor | None) -> Tensor:
    y: Tensor = linear(x) if before is None else linear(x, before, "add")
    return y


def _linear(given: nn.Linear) -> PackedLinear:
    bias = None if given.bias is None else local(given.bias)
    return PackedLinear(local(given.weight).contiguous(), bias, sum_of_shares(given.weight))


def _norm(given: nn.Module) -> nn.Module:
    return _pack(given) or given
