"""Cuts a video at given frames."""

from itertools import pairwise


class At:
    """Cuts at these frames."""

    def __init__(self, *cuts):
        self.cuts = cuts

    def spans(self, frames, *, fps):
        count = sum(1 for _ in frames)
        yield from pairwise([0, *(cut for cut in self.cuts if cut < count), count])
