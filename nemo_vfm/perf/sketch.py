# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""What is known of a model in; the same, so that thousands of layouts ask for four traces of its blocks, out.

A trace takes half a second. One device is traced, alone and as one of a ring of context ranks. What a block holds on
one of t tensor ranks is a part that they share and a part that they do not, a + b / t: two traces, of two and four, say
both; what a ring adds is shared. A sample at a time stands for several, of which torch copies a little more. All this
is held against traces in the tests.
"""

from collections.abc import Callable
from dataclasses import fields, replace

from nemo_vfm.perf.model_facts import ModelFacts
from nemo_vfm.perf.traced import Cut, Held

_FEW, _MORE = 2, 4


class Sketch(ModelFacts):
    """See the module."""

    def held(self, cut: Cut, rows: float, tokens: float) -> Held:
        """See `ModelFacts.held`."""
        found = self._brought(replace(cut, gathered=True), rows, tokens)
        return found if cut.gathered or not cut.narrow else self._copied(found, cut.tensor)

    def _brought(self, cut: Cut, rows: float, tokens: float) -> Held:
        """With weights as FSDP brings them."""
        one = replace(cut, tensor=1, sequence=False)
        if cut.tensor == 1 or self.model.plan().heads % _MORE:  # then there is little to sketch
            return self._traced(cut, rows, tokens)
        if not cut.sequence:  # what is between the linears stays whole
            first, second = self._traced(one, rows, tokens), self._traced(replace(cut, tensor=_FEW), rows, tokens)
            return _made(lambda name: _at((1, getattr(first, name)), (_FEW, getattr(second, name)), cut.tensor))
        few, more = (self._traced(replace(cut, tensor=n, ring=False), rows, tokens) for n in (_FEW, _MORE))
        found = _made(lambda name: _at((_FEW, getattr(few, name)), (_MORE, getattr(more, name)), cut.tensor))
        if not cut.ring:
            return found
        with_ring, without = (self._traced(replace(one, ring=ring), rows, tokens) for ring in (True, False))
        return _made(
            lambda name: getattr(found, name) + (getattr(with_ring, name) - getattr(without, name)) / cut.tensor
        )

    def _traced(self, cut: Cut, rows: float, tokens: float) -> Held:
        super().held(cut, 1, tokens)
        return self.traces[cut, True].at(rows, tokens)

    def _copied(self, found: Held, tensor: int) -> Held:
        """Where autocast copies weights into the dtype of the arithmetic, and keeps the copies for backward."""
        block = 2 * sum(weight.local(tensor) for weight in self.block)
        last = 2 * sum(weight.local(tensor) for weight in self.last)
        return replace(
            found, block=found.block + block, block_forward=found.block_forward + block,
            leave_forward=found.leave_forward + last, leave_kept=found.leave_kept + last,
            leave_backward=found.leave_backward + last, leave_left=found.leave_left + last,
        )  # fmt: skip


def _made(number: Callable[[str], float]) -> Held:
    return Held(**{field.name: number(field.name) for field in fields(Held)})


def _at(few: tuple[int, float], more: tuple[int, float], tensor: int) -> float:
    """Through two points (ranks, number), as a part that all have and one that they share."""
    shared = (few[1] - more[1]) / (1 / few[0] - 1 / more[0])
    return more[1] + shared * (1 / tensor - 1 / more[0])


def sketch(known: ModelFacts) -> ModelFacts:
    """The same facts, quicker."""
    return Sketch(**{field.name: getattr(known, field.name) for field in fields(known)})
