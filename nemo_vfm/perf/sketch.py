# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""What is known of a model in; the same, so that thousands of layouts ask for three traces of its blocks, out.

A trace takes half a second. What a block holds is a part that tensor ranks share and a part that they do not, a + b / t
of t ranks: two traces, with two and four, say both, to the byte for any other number where tokens are split too. A
sample at a time stands for several, of which torch copies a little more. Both are held against traces in the tests.
"""

from dataclasses import fields, replace

from nemo_vfm.perf.model_facts import ModelFacts
from nemo_vfm.perf.traced import Cut, Held

_FEW, _MORE = 2, 4


class Sketch(ModelFacts):
    """See the module."""

    def held(self, cut: Cut, rows: float, tokens: float) -> Held:
        """See `ModelFacts.held`."""
        if not cut.sequence or cut.tensor in (_FEW, _MORE):
            return self._traced(cut, rows, tokens)
        few = self._traced(replace(cut, tensor=_FEW), rows, tokens)
        more = self._traced(replace(cut, tensor=_MORE), rows, tokens)
        return Held(**{
            name: _at(getattr(few, name), getattr(more, name), cut.tensor) for name in Held.__dataclass_fields__
        })  # fmt: skip

    def _traced(self, cut: Cut, rows: float, tokens: float) -> Held:
        """Weights come as FSDP brings them; where autocast copies them instead, the copies are added."""
        brought = replace(cut, gathered=True)
        super().held(brought, 1, tokens)
        found = self.traces[brought, True].at(rows, tokens)
        if cut.gathered or not cut.narrow:
            return found
        block = 2 * sum(weight.local(cut.tensor) for weight in self.block)
        last = 2 * sum(weight.local(cut.tensor) for weight in self.last)
        return replace(
            found, block=found.block + block, block_forward=found.block_forward + block,
            leave_forward=found.leave_forward + last, leave_kept=found.leave_kept + last,
            leave_backward=found.leave_backward + last, leave_left=found.leave_left + last,
        )  # fmt: skip


def _at(few: float, more: float, tensor: int) -> float:
    shared = (few - more) / (1 / _FEW - 1 / _MORE)
    return more + shared * (1 / tensor - 1 / _MORE)


def sketch(known: ModelFacts) -> ModelFacts:
    """The same facts, quicker."""
    return Sketch(**{field.name: getattr(known, field.name) for field in fields(known)})
