"""Joins neighbouring spans of another splitter that look alike where they meet.

After Panda-70M (2402.19479, section 3.1), which cuts finely first and then joins by the distance of image embeddings.
It drops pieces that change inside; a splitter drops nothing. Shape letters: N frames, D the vector's width.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from nemo_vfm.core.types.media_types import Frame, Span
from nemo_vfm.curate.record.stage import Splitter
from nemo_vfm.curate.split.finder import Glance, pick

_NEAR_START, _NEAR_STOP = 0.05, 0.95  # where a span is sampled, as parts of it: not at its very edges


@runtime_checkable
class FrameEmbedder(Protocol):
    """Turns single frames into vectors whose distance says how different they look."""

    def keep(self, frame: Frame) -> Frame:
        """What is needed of a frame to embed it later; smaller is better, since many are held."""
        ...

    def embed(self, kept: Sequence[Frame]) -> NDArray[np.float32]:
        """Of what was kept, unit vectors, (N, D)."""
        ...


class ColourLayout:
    """Where which colours are: 16 by 9 cells without their mean, as a unit vector; no weights."""

    def keep(self, frame: Frame) -> Frame:
        """A grid of its pixels."""
        return pick(frame)

    def embed(self, kept: Sequence[Frame]) -> NDArray[np.float32]:
        """See `FrameEmbedder`; a frame of one colour gets zeros."""
        return np.stack([Glance(0.0, frame).layout_D for frame in kept])


class Stitch:
    """Joins neighbouring spans when the frame at 95 % of one and that at 5 % of the next look alike.

    It mends what a sensitive splitter cuts too much: a fast turn, a person who walks past the camera.

    Args:
        splitter: cuts first; its own longest length is the finest that comes out.
        max_distance: between the two frames' unit vectors, 0 to 2. 0.9 suits `ColourLayout`
            (docs/how-to/video/splitting.md); Panda-70M has 0.6 for ImageBind.
        max_length_s: nothing is joined to more than this, in seconds.
        embedder: turns frames into vectors; `ColourLayout` needs no weights.
    """

    def __init__(
        self,
        *,
        splitter: Splitter,
        max_distance: float = 0.9,
        max_length_s: float = 20.0,
        embedder: FrameEmbedder = ColourLayout(),
    ) -> None:
        if not 0 < max_distance <= 2 or max_length_s <= 0:
            raise ValueError(
                f"max_distance {max_distance} must be above 0 and at most 2, max_length_s {max_length_s} above 0"
            )
        self.splitter, self.max_distance, self.max_length_s = splitter, max_distance, max_length_s
        self.embedder = embedder

    def spans(self, frames: Iterable[Frame], *, fps: float) -> Iterator[Span]:
        """See `Splitter.spans`; at most `max_length_s` more behind than the inner splitter."""
        kept, first = list[Frame](), 0  # what the embedder needs of the frames since the last span

        def watch() -> Iterator[Frame]:
            for frame in frames:
                kept.append(self.embedder.keep(frame))
                yield frame

        longest = max(1, math.floor(self.max_length_s * fps + 1e-6))
        held: Span | None = None
        end_D: NDArray[np.float32] | None = None
        for span in self.splitter.spans(watch(), fps=fps):
            last = span[1] - 1 - span[0]
            places = [span[0] - first + round(part * last) for part in (_NEAR_START, _NEAR_STOP)]
            start_D, next_end_D = self.embedder.embed([kept[place] for place in places])
            del kept[: span[1] - first]
            first = span[1]
            if held is not None and end_D is not None:
                near = float(np.linalg.norm(start_D - end_D)) <= self.max_distance
                if near and span[1] - held[0] <= longest:
                    held, end_D = (held[0], span[1]), next_end_D
                    continue
                yield held
            held, end_D = span, next_end_D
        if held is not None:
            yield held
