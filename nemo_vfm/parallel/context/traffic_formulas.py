"""Computes the bytes that each rank must send under each context-parallel scheme; no torch needed.

N_k is the bytes of the keys that one rank holds, N_q of its queries, r the ranks in a ring and u those that exchange
heads. Exchanging heads keeps N_k and N_q (u times the tokens, a u-th of the heads), so the two parts add up:

    forward    2 N_k (r - 1)           + (2 N_q + 2 N_k) (u - 1) / u
    backward   2 (N_k + A_k) (r - 1)   + (2 N_q + 2 N_k) (u - 1) / u

A_k is N_k at the precision in which gradients are added up (fp32 for 16-bit keys). Keys and values go round again, and
partial sums of their gradients travel back to their rank. `all_gather` moves what a ring moves.
"""

from dataclasses import dataclass

from nemo_vfm.parallel.context.scheme import Scheme


@dataclass(frozen=True, slots=True)
class Sizes:
    """One attention as one rank sees it.

    Args:
        batch: samples.
        heads: attention heads.
        kv_heads: heads of keys and values.
        tokens: this rank's tokens.
        width: of one head.
        itemsize: bytes of one number of queries, keys and values.
    """

    batch: int
    heads: int
    kv_heads: int
    tokens: int
    width: int
    itemsize: int

    @property
    def queries(self) -> int:
        """Bytes of this rank's queries."""
        return self.batch * self.heads * self.tokens * self.width * self.itemsize

    @property
    def keys(self) -> int:
        """Bytes of this rank's keys."""
        return self.batch * self.kv_heads * self.tokens * self.width * self.itemsize

    @property
    def key_sums(self) -> int:
        """Bytes of the gradient of this rank's keys where it is added up."""
        return self.keys // self.itemsize * max(self.itemsize, 4)


def forward_bytes(scheme: Scheme, ranks: int, sizes: Sizes) -> float:
    """What each rank sends in the forward pass."""
    ring, ulysses = scheme.degrees(ranks)
    return 2 * sizes.keys * (ring - 1) + _heads(sizes, ulysses)


def backward_bytes(scheme: Scheme, ranks: int, sizes: Sizes) -> float:
    """What each rank sends in the backward pass."""
    ring, ulysses = scheme.degrees(ranks)
    return 2 * (sizes.keys + sizes.key_sums) * (ring - 1) + _heads(sizes, ulysses)


def _heads(sizes: Sizes, ulysses: int) -> float:
    """Queries, keys, values and what comes back: each rank keeps one share of u and sends the others."""
    return 2 * (sizes.queries + sizes.keys) * (ulysses - 1) / ulysses
