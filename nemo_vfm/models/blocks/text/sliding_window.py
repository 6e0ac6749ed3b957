"""Describes which blocks of a language model look only at the nearest tokens (Longformer, arXiv 2004.05150)."""

from dataclasses import dataclass

from nemo_vfm.core.bounds import require_between
from nemo_vfm.models.blocks.text_rope import TextRope


@dataclass(frozen=True, slots=True)
class SlidingWindow:
    """A window of attention.

    Args:
        tokens: that each token sees, itself among them.
        layers: blocks with the window, from 0; None for all.
        rope: rotary positions of these blocks; None for those of the model.
    """

    tokens: int
    layers: tuple[int, ...] | None = None
    rope: TextRope | None = None

    def __post_init__(self) -> None:
        require_between(1, 1 << 40, **{"window.tokens": self.tokens})
        if self.layers is not None and (not self.layers or len(set(self.layers)) < len(self.layers)):
            raise ValueError(f"window.layers must name blocks, each once, got {list(self.layers)}")

    def of(self, depth: int) -> list[int | None]:
        """The window of each of so many blocks."""
        with_window = range(depth) if self.layers is None else self.layers
        require_between(0, depth - 1, **{f"window.layers.{place}": layer for place, layer in enumerate(with_window)})
        return [self.tokens if layer in with_window else None for layer in range(depth)]
