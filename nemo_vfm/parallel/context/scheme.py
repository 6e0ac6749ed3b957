"""Maps the name of a context-parallel scheme to its two degrees for a number of ranks; no torch needed."""

from dataclasses import dataclass
from typing import Literal, get_args

from nemo_vfm.core.errors import UserError

Kind = Literal["all_gather", "ring", "ulysses", "ring_ulysses"]


@dataclass(frozen=True, slots=True)
class Scheme:
    """How the ranks of a context group attend to each other's tokens.

    Args:
        kind: `all_gather` brings all keys and values to every rank, `ring` passes them round one rank at a time,
            `ulysses` exchanges a share of the tokens for a share of the heads, `ring_ulysses` does that among
            neighbouring ranks and passes round between them.
        ulysses: ranks that exchange heads, for `ring_ulysses` alone. They lie side by side in the group.
    """

    kind: Kind = "ring"
    ulysses: int = 1

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
