"""Splits frames into spans of one length, whatever the frames show."""

from collections.abc import Iterable, Iterator

from nemo_vfm.core.types.media_types import Frame, Span
from nemo_vfm.curate.split.shot_lengths import Lengths, ShortTail, SpanBuilder


class FixedStride:
    """Cuts every `length_s`, counted in whole frames, so that no rounding adds up.

    Args:
        length_s: of each span, in seconds.
        min_length_s: a shorter rest joins the span before it or is left, in seconds.
        short_tail: which of both; a rest that is left can be dropped by a rule on duration_s.
    """

    def __init__(self, *, length_s: float = 10.0, min_length_s: float = 2.0, short_tail: ShortTail = "merge") -> None:
        if length_s <= 0 or not 0 <= min_length_s <= length_s:
            raise ValueError(
                f"min_length_s {min_length_s} must be between 0 and length_s {length_s}, which must be above 0"
            )
        self.length_s, self.min_length_s, self.short_tail = length_s, min_length_s, short_tail

    def spans(self, frames: Iterable[Frame], *, fps: float) -> Iterator[Span]:
        """See `Splitter.spans`; at most `min_length_s` behind."""
        lengths = Lengths.of(
            fps, min_length_s=0.0, max_length_s=self.length_s, short_tail=self.short_tail, min_tail_s=self.min_length_s
        )
        pieces, count = SpanBuilder(lengths), 0
        for _ in frames:
            count += 1
            yield from pieces.add((), count)
        yield from pieces.end(count)
