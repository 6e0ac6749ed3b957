"""Allocates the keys and values of all texts once, and computes attention of each text over its own.

A text's keys and values lie in one span of places, so that attention reads them as a view. The price is fragmentation:
a long text may wait although its length is free in pieces.
Every text has an attention call of its own. Its shapes are those it has alone, so its result is bitwise the same.
Shape letters: R rows (a token each), H heads of queries, G heads of keys and values, Q queries of a group, S new
tokens of one text, L tokens of one text so far, E head dimension.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from nemo_vfm.core.errors import UserError
from nemo_vfm.models.gpt import GPT
from nemo_vfm.parallel.layers.parallel_attention import in_window


class RoomSpan(NamedTuple):
    """Places `start` to `start + length` of a room."""

    start: int  #: the first place
    length: int  #: how many places


class SpanAllocator:
    """First fit over a sorted list of free spans; neighbours are joined when a span comes back."""

    def __init__(self, places: int) -> None:
        self._free = [RoomSpan(0, places)]

    @property
    def num_free(self) -> int:
        """Free places, contiguous or not."""
        return sum(span.length for span in self._free)

    def take(self, length: int) -> RoomSpan | None:
        """A span of this length, or None while there is none."""
        for index, span in enumerate(self._free):
            if span.length >= length:
                rest = RoomSpan(span.start + length, span.length - length)
                self._free[index : index + 1] = [rest] if rest.length else []
                return RoomSpan(span.start, length)
        return None

    def give_back(self, span: RoomSpan) -> None:
        """Free a span that `take` returned."""
        joined: list[RoomSpan] = []
        for one in sorted([*self._free, span], key=lambda one: one.start):
            last = joined[-1] if joined else None
            if last is not None and last.start + last.length == one.start:
                joined[-1] = RoomSpan(last.start, last.length + one.length)
            else:
                joined.append(one)
        self._free = joined


class KeyValueRoom:
    """Keys and values of every layer, in one tensor that never grows.

    Args:
        model: says how many layers and heads there are, and gives dtype and device.
        room_gb: its size, in 10^9 bytes.
        tensor: ranks that the model is split over; this one has its share of the heads, and so room for more tokens.
    """

    def __init__(self, model: GPT, room_gb: float, tensor: int = 1) -> None:
        sizes, weight = model.sizes, model.embedding.weight
        per_token = bytes_per_token(model) // tensor
        places = int(room_gb * 1e9) // per_token
        if places < 2:
            raise UserError(f"a room of {room_gb} GB for keys and values is too small for any text: one token takes "
                            f"{per_token:,} "
                            f"bytes; give more")  # fmt: skip
        shape = (model.depth, 2, sizes.groups // tensor, places, sizes.head_dim)
        self.pool = torch.empty(shape, dtype=weight.dtype, device=weight.device)
        self.spans = SpanAllocator(places)
        self.num_tokens = places  #: of all texts that fit


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
        rows: at least as many; the rest only fills up and attends to nothing.
    """

    def __init__(self, room: KeyValueRoom, span: RoomSpan, done: int, count: int, rows: int) -> None:
        self._pool = room.pool
        self._first, self._done = span.start, done
        self._new = slice(span.start + done, span.start + done + count)
        self._count, self._num_fill = count, rows - count
        self._seen: dict[int | None, tuple[slice, Tensor | None]] = {}  # by window

    def attend(self, layer: int, q_1HRE: Tensor, k_1GRE: Tensor, v_1GRE: Tensor, window: int | None) -> Tensor:
        """(1, H, R, E): softmax(q k^T / sqrt(E)) v over the text's own and earlier tokens in the window."""
        keys, values = self._pool[layer]
        keys[:, self._new], values[:, self._new] = k_1GRE[0, :, : self._count], v_1GRE[0, :, : self._count]
        if window not in self._seen:  # the places that some of the new tokens see, and which of them each does
            end, begin = self._done + self._count, 0 if window is None else max(0, self._done - window + 1)
            mask = None  # all of its past
            if self._done or (window is not None and end > window):
                places = torch.arange(end, device=self._pool.device)
                mask = in_window(places[self._done :, None], places[begin:], window or end)
            self._seen[window] = slice(self._first + begin, self._new.stop), mask
        seen, mask_SL = self._seen[window]
        out_1HSE = F.scaled_dot_product_attention(
            q_1HRE[:, :, : self._count], keys[None, :, seen], values[None, :, seen],
            attn_mask=mask_SL, is_causal=mask_SL is None, enable_gqa=True,
        )  # fmt: skip
        return F.pad(out_1HSE, (0, 0, 0, self._num_fill))


class JointAttention:
    """New tokens of several texts in the first rows, then a piece of another's prompt; a `cache` of a `TextContext`."""

    def __init__(self, texts: "DecodeAttention", num_texts: int, prompt: PromptAttention) -> None:
        self._texts, self._num_texts, self._prompt = texts, num_texts, prompt

    def attend(self, layer: int, q_1HRE: Tensor, k_1GRE: Tensor, v_1GRE: Tensor, window: int | None) -> Tensor:
        """(1, H, R, E): each row's attention over its own text."""
        first, rest = slice(None, self._num_texts), slice(self._num_texts, None)
        texts = self._texts.attend(layer, q_1HRE[:, :, first], k_1GRE[:, :, first], v_1GRE[:, :, first], window)
        prompt = self._prompt.attend(layer, q_1HRE[:, :, rest], k_1GRE[:, :, rest], v_1GRE[:, :, rest], window)
        return torch.cat([texts, prompt], dim=2)


class DecodeAttention:
    """Attention of one new token of each of several texts; the `cache` of a `TextContext`.

    Args:
        room: of the keys and values.
        texts: (span, tokens that are in already) of each.
        rows: R, at least as many; the rest only fills up and attends to nothing.
    """

    def __init__(self, room: KeyValueRoom, texts: Sequence[tuple[RoomSpan, int]], rows: int) -> None:
        # All views are made at once: of the time of a small model, slicing in every layer is a tenth.
        self._by_layer, self._texts = room.pool.flatten(0, 1)[:, None], texts
        self._seen: dict[int | None, list[tuple[Tensor, ...]]] = {}  # by window
        self._new = [self._by_layer[:, 0, :, span.start + done].unbind() for span, done in texts]
        self._num_fill = rows - len(texts)

    def attend(self, layer: int, q_1HRE: Tensor, k_1GRE: Tensor, v_1GRE: Tensor, window: int | None) -> Tensor:
        """(1, H, R, E): softmax(q k^T / sqrt(E)) v over each text's tokens so far in the window."""
        if window not in self._seen:
            ends = [(span.start, done + 1) for span, done in self._texts]
            self._seen[window] = [
                self._by_layer[:, :, :, start + max(0, end - (window or end)) : start + end].unbind()
                for start, end in ends
            ]
        groups, head_dim = k_1GRE.shape[1], k_1GRE.shape[3]
        # The queries of a group look at the same keys: as Q rows of one call they need no copy of these.
        q_R = q_1HRE[0].transpose(0, 1).reshape(-1, 1, groups, q_1HRE.shape[1] // groups, head_dim).unbind()
        new = zip(self._new, k_1GRE[0].unbind(1), v_1GRE[0].unbind(1), strict=False)
        for places, k_GE, v_GE in new:
            places[2 * layer].copy_(k_GE)
            places[2 * layer + 1].copy_(v_GE)
        out = [
            F.scaled_dot_product_attention(q_1GQE, seen[2 * layer], seen[2 * layer + 1])
            for q_1GQE, seen in zip(q_R, self._seen[window], strict=False)
        ]
        out += [torch.zeros_like(q_R[0])] * self._num_fill
        return (torch.cat(out) if len(out) > 1 else out[0]).flatten(1, 2).transpose(0, 1)[None]
