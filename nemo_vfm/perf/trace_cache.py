"""Caches traces of a model's blocks, so that thousands of layouts need only a few of them.

A trace takes half a second. One device is traced, alone and as one of a ring of context ranks, and one of two tensor
ranks; of a language model one of four, too. A block on one of t ranks holds a replicated part and a split part,
a + b / t, which two of the traces give; what a ring adds is split. One sample stands for several, of which torch copies
a little more. The tests compare all this with traces.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace

from nemo_vfm.perf.model_facts import ModelFacts
from nemo_vfm.perf.traced import Cut, TracedMemory

_FEW, _MORE = 2, 4


@dataclass(frozen=True)
class CachedTraces(ModelFacts):
    """See the module.

    Args:
        sketched: what was asked for before.
    """

    sketched: dict[tuple[Cut, float, float], TracedMemory] = field(default_factory=dict)

    def held(self, cut: Cut, rows: float, tokens: float) -> TracedMemory:
        """See `ModelFacts.held`."""
        key = cut, rows, tokens
        if key not in self.sketched:
            found = self._brought(replace(cut, gathered=True), rows, tokens)
            self.sketched[key] = found if cut.gathered or not cut.narrow else self._copied(found, cut.tensor)
        return self.sketched[key]

    def _brought(self, cut: Cut, rows: float, tokens: float) -> TracedMemory:
        """With weights as FSDP brings them."""
        heads = self.model.plan().heads
        if cut.tensor == 1 or cut.tensor > heads or heads % _MORE:  # then there is little to sketch
            return self._traced(cut, rows, tokens)
        with_ring, alone = (replace(cut, tensor=1, sequence=False, ring=ring) for ring in (True, False))
        if not cut.sequence:  # what is between the linears stays whole; a ring's part is in both
            ends = (with_ring if cut.ring else alone), replace(cut, tensor=_FEW)
        else:  # a split vocabulary begins with two: one device is not on the line
            begin = replace(cut, tensor=_FEW, ring=False) if self.model.plan().vocabulary else alone
            ends = begin, replace(cut, tensor=2 * begin.tensor, sequence=True, ring=False)
        low, high = ((end.tensor, self._traced(end, rows, tokens)) for end in ends)
        found = _through(low, high, cut.tensor)
        if not cut.ring or not cut.sequence:
            return found
        more, less = (self._traced(one, rows, tokens) for one in (with_ring, alone))
        return _made(lambda name: getattr(found, name) + (getattr(more, name) - getattr(less, name)) / cut.tensor)

    def _traced(self, cut: Cut, rows: float, tokens: float) -> TracedMemory:
        super().held(cut, 1, tokens)
        return self.traces[cut, True].at(rows, tokens)

    def _copied(self, found: TracedMemory, tensor: int) -> TracedMemory:
        """Where autocast copies weights into the dtype of the arithmetic, and keeps the copies for backward."""
        block, last = (2 * self.local(where, tensor, wide=True) for where in ("block", "last"))
        return replace(
            found, block=found.block + block, block_forward=found.block_forward + block,
            output_forward=found.output_forward + last, output_kept=found.output_kept + last,
            output_backward=found.output_backward + last, output_left=found.output_left + last,
        )  # fmt: skip


def _made(number: Callable[[str], float]) -> TracedMemory:
    return TracedMemory(**{one.name: number(one.name) for one in fields(TracedMemory)})


def _through(few: tuple[int, TracedMemory], more: tuple[int, TracedMemory], tensor: int) -> TracedMemory:
    """Through two points (ranks, what is held), as a part that all have and one that they share."""

    def number(name: str) -> float:
        low: float = getattr(few[1], name)
        high: float = getattr(more[1], name)
        return high + (low - high) / (1 / few[0] - 1 / more[0]) * (1 / tensor - 1 / more[0])

    return _made(number)


def sketch(known: ModelFacts) -> ModelFacts:
    """The same facts, quicker."""
    return CachedTraces(**{one.name: getattr(known, one.name) for one in fields(known)})
