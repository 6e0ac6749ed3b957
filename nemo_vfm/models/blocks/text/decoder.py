"""Defines one block of a causal language model, and the keys and values that a generation keeps.

Rows of the fused projections are ordered by group of heads (its queries, its key, its value). So a tensor-parallel
split of the output features keeps whole groups together, and these modules read their numbers from the activations.
Texts of a batch that is generated end at the same place: shorter ones begin later, and positions before are masked.
Shape letters: B batch, S tokens, D width, G groups (heads of keys and values), Q queries of a group, H heads = G Q,
E head dimension, R its rotated part, L room for all tokens of a text.
"""

from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nemo_vfm.models.blocks.layers import LayerNorm1p, RMSNorm, RMSNorm1p, rotate_first
from nemo_vfm.models.blocks.text.experts import Activation, ExpertMLP, Experts, MixtureOfExperts, Routes
from nemo_vfm.parallel.layers.linear import Linear
from nemo_vfm.parallel.layers.parallel_attention import causal_attention, in_window, own_queries, whole_groups

NormKind = Literal["layernorm1p", "rmsnorm", "rmsnorm1p"]
Rotation = tuple[Tensor, Tensor]
_NORMS: dict[NormKind, type[nn.Module]] = {"layernorm1p": LayerNorm1p, "rmsnorm": RMSNorm, "rmsnorm1p": RMSNorm1p}


@dataclass(frozen=True, slots=True)
class BlockSizes:
    """Of one block."""

    width: int  #: D
    heads: int  #: H, of queries
    groups: int  #: G, heads of keys and values; H / G queries share each
    head_dim: int  #: E
    mlp_hidden: int  #: between the two linears of the perceptron
    activation: Activation  #: of the perceptron; swiglu and geglu have a gate
    norm: NormKind  #: layernorm1p has a bias; it and rmsnorm1p have a gain that is kept as its difference from 1
    eps: float  #: added to the variance in norms
    qkv_bias: bool  #: whether queries, keys and values have one
    qk_norm: bool  #: whether queries and keys of each head are normalised before they are rotated
    post_norm: bool  #: whether the output of attention and perceptron is normalised, too, before it is added
    query_scalar: int | None  #: scores of attention are divided by its root; None takes E
    experts: Experts | None  #: in place of the perceptron; None for none


def norm_of(sizes: BlockSizes) -> nn.Module:
    """The norm before each half of a block."""
    return _NORMS[sizes.norm](dim=sizes.width, eps=sizes.eps)


class AttentionCache(Protocol):
    """Keeps keys and values of a generation, and attends to them."""

    def attend(self, layer: int, q_BHSE: Tensor, k_BGSE: Tensor, v_BGSE: Tensor, window: int | None, /) -> Tensor:
        """(B, H, S, E): attention of new tokens over themselves and what came before, no farther than the window."""


class KeyValues:
    """Keys and values of every block."""

    def __init__(
        self, *, layers: int, begins_B: Tensor, groups: int, head_dim: int, most: int, dtype: torch.dtype
    ) -> None:
        shape = (layers, len(begins_B), groups, most, head_dim)
        self._keys = torch.zeros(shape, dtype=dtype, device=begins_B.device)
        self._values = torch.zeros_like(self._keys)
        self.begins_B, self.length, self.most = begins_B, 0, most

    def places(self, count: int) -> Tensor:
        """(B, S), what position each of `count` new tokens has in its text; 0 before its beginning."""
        places = torch.arange(self.length, self.length + count, device=self.begins_B.device)
        return (places - self.begins_B[:, None]).clamp_min(0)

    def attend(self, layer: int, q_BHSE: Tensor, k_BGSE: Tensor, v_BGSE: Tensor, window: int | None = None) -> Tensor:
        """(B, H, S, E); `advance` goes on once every block has been here."""
        end = self.length + k_BGSE.shape[2]
        if end > self.most:
            raise ValueError(f"the cache has room for {self.most} tokens, and {end} were requested")
        keys, values = self._keys[layer], self._values[layer]
        keys[:, :, self.length : end], values[:, :, self.length : end] = k_BGSE, v_BGSE
        # Own and earlier tokens of the text; before its beginning, a token itself, lest softmax has nothing.
        key = torch.arange(end, device=self.begins_B.device)
        query = key[self.length :, None]
        is_started = key >= self.begins_B[:, None, None]
        seen_BSL = in_window(query, key, window or end) & (is_started | (key == query))
        return F.scaled_dot_product_attention(
            q_BHSE, keys[:, :, :end].to(q_BHSE.dtype), values[:, :, :end].to(q_BHSE.dtype),
            attn_mask=seen_BSL[:, None], enable_gqa=True,
        )  # fmt: skip

    def advance(self, count: int) -> None:
        """So many tokens are in."""
        self.length += count


@dataclass(frozen=True, slots=True)
class TextContext:
    """Inputs shared by all blocks, beside the tokens."""

    cos: Tensor  #: (1 or B, S, 1, R), of this rank's tokens
    sin: Tensor  #: the same, signed as `rotate` wants it
    #: of the documents in a packed row, in tokens; None where a row is one document
    lengths: tuple[int, ...] | None = None
    cache: AttentionCache | None = None  #: keys and values of what came before; None in training
    #: cos and sin of blocks with a window, where these have positions of their own; None where they do not
    near: Rotation | None = None
    routes: Routes | None = None  #: where a mixture of experts notes its choices; None where nobody asks

    def rotation(self, window: int | None) -> Rotation:
        """(cos, sin) of a block with this window."""
        return (self.cos, self.sin) if window is None or self.near is None else self.near


class CausalAttention(nn.Module):
    """Grouped-query attention (Ainslie et al. 2023, arXiv 2305.13245): every token looks at itself and its past."""

    def __init__(self, sizes: BlockSizes, layer: int, window: int | None = None) -> None:
        super().__init__()
        self.window = window
        self.scale = 1.0 if sizes.query_scalar is None else (sizes.head_dim / sizes.query_scalar) ** 0.5
        self.layer, self.head_dim, self.queries = layer, sizes.head_dim, sizes.heads // sizes.groups
        self.qkv = Linear(sizes.width, (sizes.heads + 2 * sizes.groups) * sizes.head_dim, bias=sizes.qkv_bias)
        kind = RMSNorm1p if sizes.norm == "rmsnorm1p" else RMSNorm
        self.q_norm, self.k_norm = (
            kind(dim=sizes.head_dim, eps=sizes.eps) if sizes.qk_norm else None for _ in range(2)
        )
        self.out = Linear(sizes.heads * sizes.head_dim, sizes.width, bias=False)

    def fused_rows(self) -> dict[str, dict[str, int]]:
        return {"qkv": {"q": self.queries * self.head_dim, "k": self.head_dim, "v": self.head_dim}}

    def forward(self, x_BSD: Tensor, reading: TextContext) -> Tensor:
        """(B, S, D)."""
        qkv_BSF = whole_groups(self.qkv(x_BSD))
        parts_BSGPE = qkv_BSF.view(*qkv_BSF.shape[:2], -1, self.queries + 2, self.head_dim)
        q, k, v = torch.split(parts_BSGPE, [self.queries, 1, 1], dim=3)
        q, k, v = (part.flatten(2, 3) for part in (own_queries(q), k, v))
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = (rotate_first(x, *reading.rotation(self.window)).transpose(1, 2) for x in (q, k))
        q_BHSE, v_BGSE = q if self.scale == 1 else q * self.scale, v.transpose(1, 2)
        if reading.cache is not None:
            o_BHSE = reading.cache.attend(self.layer, q_BHSE, k, v_BGSE, self.window)
        else:
            o_BHSE = causal_attention(q_BHSE, k, v_BGSE, reading.lengths, self.window)
        update: Tensor = self.out(o_BHSE.transpose(1, 2).flatten(2))
        return update


class DecoderBlock(nn.Module):
    """Attention and perceptron, each added to what comes in, each after a norm and, in some models, before another."""

    def __init__(self, sizes: BlockSizes, layer: int, window: int | None = None) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = norm_of(sizes), norm_of(sizes)
        self.attention_post_norm = norm_of(sizes) if sizes.post_norm else None
        self.mlp_post_norm = norm_of(sizes) if sizes.post_norm else None
        self.attention = CausalAttention(sizes, layer, window)
        self.mlp: ExpertMLP | None = None
        self.experts: MixtureOfExperts | None = None
        if sizes.experts is None or layer in sizes.experts.dense_layers:
            self.mlp = ExpertMLP(sizes.width, sizes.mlp_hidden, sizes.activation)
        else:
            self.experts = MixtureOfExperts(sizes.width, sizes.activation, sizes.experts)

    def forward(self, x_BSD: Tensor, reading: TextContext) -> Tensor:
        """(B, S, D)."""
        update = self.attention(self.attention_norm(x_BSD), reading)
        x_BSD = x_BSD + (update if self.attention_post_norm is None else self.attention_post_norm(update))
        seen_BSD = self.mlp_norm(x_BSD)
        if self.mlp is not None:
            update = self.mlp(seen_BSD)
        else:
            assert self.experts is not None, "a block has a perceptron or experts"
            update = self.experts(seen_BSD, reading.routes)
        y: Tensor = x_BSD + (update if self.mlp_post_norm is None else self.mlp_post_norm(update))
        return y
