"""Caches keys and values during generation, and computes attention of new tokens over all tokens so far.

Texts of a batch end at the same place: shorter ones begin later, and positions before their beginning are masked.
Shape letters: B batch, H heads of queries, G heads of keys and values, S new tokens, L room for all, E head dimension.
"""

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from nemo_vfm.parallel.layers.parallel_attention import in_window


class AttentionCache(Protocol):
    """Keeps keys and values of a generation, and attends to them."""

    def attend(self, layer: int, q_BHSE: Tensor, k_BGSE: Tensor, v_BGSE: Tensor, window: int | None, /) -> Tensor:
        """(B, H, S, E): attention of new tokens over themselves and what came before, no farther than the window."""
        ...


class KeyValues:
    """Keys and values of every block.

    Args:
        layers: how many blocks.
        begins_B: the place at which each text begins.
        groups: G.
        head_dim: E.
        most: L.
        dtype: of what is kept.
    """

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
        """(B, H, S, E); `advance` goes on once every block has been here.

        Raises:
            ValueError: there is no room for so many tokens.
        """
        end = self.length + k_BGSE.shape[2]
        if end > self.most:
            raise ValueError(f"the cache has room for {self.most} tokens, and {end} were requested")
        keys, values = self._keys[layer], self._values[layer]
        keys[:, :, self.length : end], values[:, :, self.length : end] = k_BGSE, v_BGSE
        return F.scaled_dot_product_attention(
            q_BHSE, keys[:, :, :end].to(q_BHSE.dtype), values[:, :, :end].to(q_BHSE.dtype),
            attn_mask=self._seen(k_BGSE.shape[2], window), enable_gqa=True,
        )  # fmt: skip

    def advance(self, count: int) -> None:
        """So many tokens are in."""
        self.length += count

    def _seen(self, count: int, window: int | None) -> Tensor:
        """(B, 1, S, L'): own and earlier tokens of the text; before its beginning, itself, lest softmax has nothing."""
        end = self.length + count
        key = torch.arange(end, device=self.begins_B.device)
        query = key[self.length :, None]
        is_started = key >= self.begins_B[:, None, None]
        return (in_window(query, key, window or end) & (is_started | (key == query)))[:, None]
