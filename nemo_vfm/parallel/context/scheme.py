"""Names the schemes of context parallelism, with their degrees and the bytes that each rank must send; no torch needed.

N_k is the bytes of the keys that one rank holds, N_q of its queries, r the ranks in a ring and u those that exchange
heads. Exchanging heads keeps N_k and N_q (u times the tokens, a u-th of the heads), so the two parts add up:

    forward    2 N_k (r - 1)           + (2 N_q + 2 N_k) (u - 1) / u
    backward   2 (N_k + A_k) (r - 1)   + (2 N_q + 2 N_k) (u - 1) / u

A_k is N_k at the precision in which gradients are added up (fp32 for 16-bit keys). Keys and values go round again, and
partial sums of their gradients travel back to their rank. `all_gather` moves what a ring moves.
"""

from dataclasses import dataclass
from typing import Literal, get_args

from nemo_vfm.core.errors import UserError

Kind = Literal["all_gather", "ring", "ulysses", "ring_ulysses"]


@dataclass(frozen=True, slots=True)
class Scheme:
    """How the ranks of a context group attend to each other's tokens."""

    #: `all_gather` brings all keys and values to every rank, `ring` passes them round one rank at a time, `ulysses`
    #: exchanges a share of the tokens for a share of the heads, `ring_ulysses` does that among neighbouring ranks and
    #: passes round between them
    kind: Kind = "ring"
    ulysses: int = 1  #: ranks that exchange heads, for `ring_ulysses` alone. They lie side by side in the group.

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise UserError(f"unknown context scheme {self.kind!r}. Use one of {', '.join(get_args(Kind))}")
        if self.kind == "ring_ulysses" and self.ulysses < 2:
            raise UserError(
                f"context scheme ring_ulysses got ulysses {self.ulysses}, but exchanging heads needs at least 2 "
                f"ranks. Use ring to exchange none"
            )
        if self.kind != "ring_ulysses" and self.ulysses != 1:
            raise UserError(
                f"context scheme {self.kind} got ulysses {self.ulysses}, which only ring_ulysses uses. "
                f"Remove it, or use ring_ulysses"
            )

    def degrees(self, ranks: int) -> tuple[int, int]:
        """(ranks in each ring, ranks that exchange heads); their product is `ranks`."""
        if self.kind in ("all_gather", "ring"):
            return ranks, 1
        ulysses = ranks if self.kind == "ulysses" else self.ulysses
        if ranks % ulysses:
            raise UserError(
                f"a context of {ranks} ranks is not divisible by ulysses {ulysses}. "
                f"Choose a divisor of {ranks}, or a multiple of {ulysses} ranks"
            )
        return ranks // ulysses, ulysses

    def check_heads(self, ranks: int, heads: int, kv_heads: int) -> None:
        """Refuse heads that cannot be dealt out among the ranks which exchange them."""
        _, ulysses = self.degrees(ranks)
        for name, count in (("attention heads", heads), ("key and value heads", kv_heads)):
            if count % ulysses:
                raise UserError(
                    f"{count} {name} are not divisible by the {ulysses} ranks that exchange heads under {self.kind}. "
                    f"Use a degree that divides {count}, or the scheme ring, which splits no heads"
                )
        if heads % kv_heads:
            raise UserError(f"{heads} attention heads are not divisible by {kv_heads} key and value heads")


@dataclass(frozen=True, slots=True)
class AttentionSizes:
    """One attention as one rank sees it."""

    batch: int  #: samples
    heads: int  #: attention heads
    kv_heads: int  #: heads of keys and values
    tokens: int  #: this rank's tokens
    width: int  #: of one head
    itemsize: int  #: bytes of one number of queries, keys and values

    @property
    def queries(self) -> int:
        """Bytes of this rank's queries."""
        return self.batch * self.heads * self.tokens * self.width * self.itemsize

    @property
    def keys(self) -> int:
        """Bytes of this rank's keys."""
        return self.batch * self.kv_heads * self.tokens * self.width * self.itemsize


def forward_bytes(scheme: Scheme, ranks: int, sizes: AttentionSizes) -> float:
    """What each rank sends in the forward pass."""
    ring, ulysses = scheme.degrees(ranks)
    return 2 * sizes.keys * (ring - 1) + _heads(sizes, ulysses)


def backward_bytes(scheme: Scheme, ranks: int, sizes: AttentionSizes) -> float:
    """What each rank sends in the backward pass."""
    ring, ulysses = scheme.degrees(ranks)
    key_sums = sizes.keys // sizes.itemsize * max(sizes.itemsize, 4)  # of the gradient of keys, where it is added up
    return 2 * (sizes.keys + key_sums) * (ring - 1) + _heads(sizes, ulysses)


def _heads(sizes: AttentionSizes, ulysses: int) -> float:
    """Queries, keys, values and what comes back: each rank keeps one share of u and sends the others."""
    return 2 * (sizes.queries + sizes.keys) * (ulysses - 1) / ulysses
