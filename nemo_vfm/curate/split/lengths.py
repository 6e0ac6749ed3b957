# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Frames and a finder of cuts in, spans of bounded length that cover all frames out, each as soon as it is certain."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from nemo_vfm.curate.split.finder import Finder
from nemo_vfm.curate.split.glance import Eye, Glance
from nemo_vfm.curate.stage import Frame, Span

ShortTail = Literal["merge", "leave"]


@dataclass(frozen=True, slots=True)
class Lengths:
    """How long spans are, in frames.

    Args:
        min_frames: two cuts are never nearer.
        longest: longer shots are cut into pieces of this length.
        tail: a last piece shorter than this joins the one before it, which is then longer than `longest`.
    """

    min_frames: int
    longest: int
    tail: int

    @classmethod
    def of(
        cls, fps: float, *, min_length_s: float, max_length_s: float, short_tail: ShortTail, min_tail_s: float
    ) -> "Lengths":
        """From seconds; the longest is rounded down, so that no piece is longer than was asked for."""
        tail = round(min_tail_s * fps) if short_tail == "merge" else 0
        return cls(max(1, round(min_length_s * fps)), max(1, math.floor(max_length_s * fps + 1e-6)), tail)


def check_lengths(*, min_length_s: float, max_length_s: float, min_tail_s: float) -> None:
    """ValueError where they contradict each other."""
    if not 0 <= min_length_s < max_length_s or not 0 <= min_tail_s < max_length_s:
        raise ValueError(
            f"min_length_s {min_length_s} and min_tail_s {min_tail_s} must be below max_length_s {max_length_s}"
        )


class Pieces:
    """Cuts in, spans out.

    Args:
        lengths: of the spans.
    """

    def __init__(self, lengths: Lengths) -> None:
        self._longest, self._tail, self._start = lengths.longest, max(lengths.tail, 1), 0

    def add(self, cuts: Iterable[int], certain: int) -> Iterator[Span]:
        """The spans that end at these cuts, and those that no cut before the frame `certain` can change."""
        for cut in cuts:
            if cut > self._start:
                yield from self._until(cut)
        yield from self._pieces(certain)

    def end(self, count: int) -> Iterator[Span]:
        """The rest of a film of `count` frames."""
        if count > self._start:
            yield from self._until(count)

    def _until(self, stop: int) -> Iterator[Span]:
        yield from self._pieces(stop)
        yield self._start, stop
        self._start = stop

    def _pieces(self, known: int) -> Iterator[Span]:
        """The first pieces of a shot that goes on at least until `known`; the last is kept for its tail."""
        while known >= self._start + self._longest + self._tail:
            yield self._start, self._start + self._longest
            self._start += self._longest


def cut(frames: Iterable[Frame], finder: Finder, lengths: Lengths) -> Iterator[Span]:
    """Spans between the finder's cuts, in pieces where they are too long."""
    yield from cut_glances(map(Eye().look, frames), finder, lengths)


def cut_glances(glances: Iterable[Glance], finder: Finder, lengths: Lengths) -> Iterator[Span]:
    """The same of frames that were glanced at."""
    pieces, count = Pieces(lengths), 0
    for glance in glances:
        cuts = finder.see(glance)
        count += 1
        yield from pieces.add(cuts, finder.certain())
    yield from pieces.add((cut for cut in finder.end() if cut < count), 0)
    yield from pieces.end(count)
