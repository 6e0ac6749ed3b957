# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Allocates the keys and values of all texts once, and computes attention of each text over its own.

Every text has an attention call of its own. Its shapes are those it has alone, so its result is bitwise the same.
Shape letters: R rows (a new token each), H heads of queries, G heads of keys and values, Q queries of a group, S new
tokens of one text, L tokens of one text so far, E head dimension.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from nemo_vfm.core.errors import UserError
from nemo_vfm.models.gpt import GPT
from nemo_vfm.serve.continuous.span_allocator import Span, SpanAllocator


class KeyValueRoom:
    """Keys and values of every layer, in one tensor that never grows.

    Args:
        model: says how many layers and heads there are, and gives dtype and device.
        room_gb: its size, in 10^9 bytes.

    Raises:
        UserError: not even two tokens fit.
    """

    def __init__(self, model: GPT, room_gb: float) -> None:
        sizes, weight = model.sizes, model.embedding.weight
        per_token = bytes_per_token(model)
        places = int(room_gb * 1e9) // per_token
        if places < 3:
            raise UserError(f"a room of {room_gb} GB for keys and values holds no text: one token takes {per_token:,} "
                            f"bytes; give more")  # fmt: skip
        shape = (model.depth, 2, sizes.groups, places, sizes.head_dim)
        self.pool = torch.empty(shape, dtype=weight.dtype, device=weight.device)
        # Rows that only fill a batch up write to the last place, which belongs to nobody.
        self.spare = places - 1
        self.spans = SpanAllocator(places - 1)

    @property
    def num_tokens(self) -> int:
        """Tokens of all texts that fit."""
        return self.spans.places

    def num_bytes(self) -> int:
        """Of the tensor."""
        return self.pool.numel() * self.pool.element_size()


def bytes_per_token(model: GPT) -> int:
    """Bytes that one token's keys and values take in all layers."""
    sizes = model.sizes
    return model.depth * 2 * sizes.groups * sizes.head_dim * model.embedding.weight.element_size()


class PromptAttention:
    """Attention of one text's next S tokens; the `cache` of a `TextContext`.

    Args:
        room: of the keys and values.
        span: the text's.
        done: tokens that are in already.
        count: S.
    """

    def __init__(self, room: KeyValueRoom, span: Span, done: int, count: int) -> None:
        self._pool = room.pool
        self._first, self._new = span.start, slice(span.start + done, span.start + done + count)
        query = torch.arange(done, done + count, device=room.pool.device)[:, None]
        self._mask_SL = torch.arange(done + count, device=room.pool.device) <= query if done else None

    def attend(self, layer: int, q_1HSE: Tensor, k_1GSE: Tensor, v_1GSE: Tensor) -> Tensor:
        """(1, H, S, E): softmax(q k^T / sqrt(E)) v over the text's own and earlier tokens."""
        keys, values = self._pool[layer]
        keys[:, self._new], values[:, self._new] = k_1GSE[0], v_1GSE[0]
        seen = slice(self._first, self._new.stop)
        return F.scaled_dot_product_attention(
            q_1HSE, keys[None, :, seen], values[None, :, seen],
            attn_mask=self._mask_SL, is_causal=self._mask_SL is None, enable_gqa=True,
        )  # fmt: skip


class DecodeAttention:
    """Attention of one new token of each of several texts; the `cache` of a `TextContext`.

    Args:
        room: of the keys and values.
        texts: (span, tokens that are in already) of each.
        rows: R, at least as many; the rest only fills up and attends to nothing.
    """

    def __init__(self, room: KeyValueRoom, texts: Sequence[tuple[Span, int]], rows: int) -> None:
        self._pool = room.pool
        self._seen = [slice(span.start, span.start + done + 1) for span, done in texts]
        places = [seen.stop - 1 for seen in self._seen] + [room.spare] * (rows - len(texts))
        self._places_R = torch.tensor(places, device=room.pool.device)

    def attend(self, layer: int, q_1HRE: Tensor, k_1GRE: Tensor, v_1GRE: Tensor) -> Tensor:
        """(1, H, R, E): softmax(q k^T / sqrt(E)) v over each text's tokens so far."""
        keys, values = self._pool[layer].unbind()
        keys.index_copy_(1, self._places_R, k_1GRE[0])
        values.index_copy_(1, self._places_R, v_1GRE[0])
        # The queries of a group look at the same keys: as Q rows of one call they need no copy of these.
        q_RGQE = q_1HRE[0].transpose(0, 1).reshape(q_1HRE.shape[2], keys.shape[0], -1, keys.shape[2])
        out_RGQE = torch.zeros_like(q_RGQE)
        for row, seen in enumerate(self._seen):
            out_RGQE[row] = F.scaled_dot_product_attention(
                q_RGQE[row : row + 1], keys[None, :, seen], values[None, :, seen]
            )[0]
        return out_RGQE.flatten(1, 2).transpose(0, 1)[None]
