"""Collects the facts about a model, its inputs and its optimizer that `memory` needs, and caches traces of its blocks.

A trace takes half a second, and `sketch` makes thousands of layouts need only a few. One device is traced, alone and as
one of a ring of context ranks, and one of two tensor ranks; of a language model one of four, too. A block on one of t
ranks holds a replicated part and a split part, a + b / t, which two of the traces give; what a ring adds is split. One
sample stands for several, of which torch copies a little more. The tests compare all this with traces.
"""

from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from math import prod
from typing import Any, Literal

import torch
from torch import nn

from nemo_vfm.core.without_compiler import without_compiler
from nemo_vfm.parallel.apply.frozen_weights import castable_weights, only_adapters_learn
from nemo_vfm.parallel.apply.pipeline_stage import Cuttable
from nemo_vfm.parallel.plan.sharding_spec import OptimizerFactory, match_modules
from nemo_vfm.parallel.plan.static_memory import StaticMemory, split_axis
from nemo_vfm.perf.model_work import num_parameters
from nemo_vfm.perf.stand_ins import Shapes, sample_tokens
from nemo_vfm.perf.traced import AffineMemory, BlockSplit, TracedMemory, trace_step, two_blocks

Where = Literal["block", "first", "last", "every"]
_ADAMW: OptimizerFactory = partial(torch.optim.AdamW, lr=1e-4)


@dataclass(frozen=True, slots=True)
class Weight:
    """A parameter."""

    shape: tuple[int, ...]  #: whole
    axis: int | None  #: that tensor ranks split; None where each has all
    learns: bool  #: whether it has a gradient
    narrows: bool = False  #: whether it is stored in the dtype of the arithmetic; else in fp32

    def local(self, tensor: int) -> int:
        """Numbers where nobody shares rows; if `wide`, only those that are stored in fp32 whatever the arithmetic."""
        whole = prod(self.shape)
        return whole if self.axis is None else whole // tensor

    def shard_numel(self, tensor: int, sharing: int) -> int:
        """The same where so many ranks share its rows; of the one with most."""
        rows = self.shape[0] if self.shape else 1
        rows = rows // tensor if self.axis == 0 else rows
        return -(-rows // sharing) * (self.local(tensor) // max(1, rows))


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What `memory` wants to know of a model."""

    model: Cuttable  #: its first block twice and no other, on the meta device
    shapes: Shapes  #: of its inputs
    tokens: int  #: of one sample
    depth: int  #: blocks
    block: tuple[Weight, ...]  #: weights of one
    first: tuple[Weight, ...]  #: those that only the first stage of a pipeline has
    last: tuple[Weight, ...]  #: likewise the last
    every: tuple[Weight, ...]  #: those that every stage has
    buffers: int  #: bytes of what is no parameter
    optimizer: OptimizerFactory  #: builds the optimizer
    kept: StaticMemory  #: what it keeps
    traces: dict[tuple[BlockSplit, bool], AffineMemory] = field(
        default_factory=dict
    )  #: what was found of ways to cut the blocks
    update_copies: bool = True  #: whether, on a GPU, it makes a copy of a moment while it updates
    frozen: bool = False  #: whether adapters alone learn
    large_linears: int = 0  #: of a block, those that FP8 concerns where a recipe says so
    #: what was added up once: a plan asks some 100,000 times
    sums: dict[tuple[object, ...], int] = field(default_factory=dict)
    #: what `memory` found of devices of a layout, whatever their microbatches
    standing: dict[tuple[object, ...], list[Any]] = field(default_factory=dict)

    def shard_numel(self, where: Where, tensor: int, sharing: int, *, learning: bool = False) -> int:
        """Numbers of these weights on the fullest of so many tensor ranks and ranks that share rows.

        Args:
            where: block (one of them), first, last or every.
            tensor: ranks that split them.
            sharing: ranks that share the rows of each.
            learning: only those with a gradient.
        """
        key = where, tensor, sharing, learning
        if key not in self.sums:
            weights: tuple[Weight, ...] = getattr(self, where)
            self.sums[key] = sum(one.shard_numel(tensor, sharing) for one in weights if one.learns or not learning)
        return self.sums[key]

    def num_bytes(self, where: Where, tensor: int, sharing: int, *, narrow: bool) -> int:
        """Bytes of them: fp32, and under bf16 arithmetic two each of what is stored in it."""
        key = "stored", where, tensor, sharing, narrow
        if key not in self.sums:
            weights: tuple[Weight, ...] = getattr(self, where)
            self.sums[key] = sum(
                (2 if narrow and one.narrows else 4) * one.shard_numel(tensor, sharing) for one in weights
            )  # fmt: skip
        return self.sums[key]

    def local(self, where: Where, tensor: int, *, wide: bool = False) -> int:
        """Numbers where nobody shares rows.

        Args:
            wide: only those that are stored in fp32 whatever the arithmetic.
        """
        key = where, tensor, wide
        if key not in self.sums:
            weights: tuple[Weight, ...] = getattr(self, where)
            self.sums[key] = sum(one.local(tensor) for one in weights if not (wide and one.narrows))
        return self.sums[key]

    def step_memory(self, cut: BlockSplit, rows: float, tokens: float) -> TracedMemory:
        """What a step holds; a way of cutting blocks is traced when it is first asked for.

        Always with as many tokens, those of a sample or of a ring's half, so that nothing depends on who asks first.
        """
        key = cut, rows == 1
        if key not in self.traces:
            size = self.tokens // 2 if cut.ring else self.tokens
            self.traces[key] = trace_step(self.model, self.shapes, cut, tokens=size, single=rows == 1)
        return self.traces[key].at(rows, tokens)


def facts(model: nn.Module, inputs: Shapes, optimizer: OptimizerFactory = _ADAMW) -> ModelFacts:
    """Look at a model on the meta device, or a small one.

    Args:
        inputs: shapes of what it is called with (`ModelInputs.shapes`): tokens_BS, or latents_BCTHW and text_BLD.

    Raises:
        ValueError: the model does not say enough of itself, or has other inputs.
    """
    if not isinstance(model, Cuttable):
        raise ValueError(f"{type(model).__name__} lacks plan, context, embed, run_blocks or output, so the memory of a "
                         f"step cannot be estimated")  # fmt: skip
    how = model.plan()
    small, blocks = two_blocks(model), list(model.get_submodule(how.blocks).children())
    modules = [name for name, _ in model.named_modules()]
    ends = {kind: tuple(f"{module}." for module in match_modules(getattr(how, kind), modules))
            for kind in ("first", "last", "every")}  # fmt: skip
    narrows = castable_weights(model)
    weights = {
        name: Weight(tuple(p.shape), split_axis(name, how), p.requires_grad, name in narrows)
        for name, p in model.named_parameters()
    }
    largest = max(range(len(blocks)), key=lambda place: num_parameters(blocks[place]))
    begin = f"{how.blocks}.{list(model.get_submodule(how.blocks)._modules)[largest]}."
    placed = {name: next((kind for kind, below in ends.items() if name.startswith(below)), "every") for name in weights}
    outer = {name: weight for name, weight in weights.items() if not name.startswith(f"{how.blocks}.")}
    names = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    found = set(match_modules((*how.column, *how.row), names))
    # torch's optimizers do on a GPU, where they go over all weights at once, unless one kernel does all of it.
    with without_compiler():
        options = optimizer([("weight", nn.Parameter(torch.zeros(2, 3)))]).defaults
    return ModelFacts(
        model=small, shapes=dict(inputs), tokens=sample_tokens(model, inputs), depth=len(blocks),
        block=tuple(weight for name, weight in weights.items() if name.startswith(begin)),
        first=tuple(weight for name, weight in outer.items() if placed[name] == "first"),
        last=tuple(weight for name, weight in outer.items() if placed[name] == "last"),
        every=tuple(weight for name, weight in outer.items() if placed[name] == "every"),
        buffers=sum(buffer.nbytes for buffer in model.buffers()), optimizer=optimizer, kept=StaticMemory(optimizer),
        update_copies=not options.get("fused") and options.get("foreach") is not False,
        frozen=only_adapters_learn(model),
        large_linears=sum(name.startswith(begin) for name in found),
    )  # fmt: skip


_FEW, _MORE = 2, 4


@dataclass(frozen=True)
class CachedTraces(ModelFacts):
    """See the module."""

    sketched: dict[tuple[BlockSplit, float, float], TracedMemory] = field(
        default_factory=dict
    )  #: what was asked for before

    def step_memory(self, cut: BlockSplit, rows: float, tokens: float) -> TracedMemory:
        """See `ModelFacts.step_memory`."""
        key = cut, rows, tokens
        if key not in self.sketched:
            found = self._with_fsdp_weights(replace(cut, gathered=True), rows, tokens)
            if cut.narrow and not cut.gathered:
                # Autocast copies weights into the dtype of the arithmetic, and keeps the copies for backward.
                block, last = (2 * self.local(where, cut.tensor, wide=True) for where in ("block", "last"))
                found = replace(
                    found, block=found.block + block, block_forward=found.block_forward + block,
                    output_forward=found.output_forward + last, output_kept=found.output_kept + last,
                    output_backward=found.output_backward + last, output_left=found.output_left + last,
                )  # fmt: skip
            self.sketched[key] = found
        return self.sketched[key]

    def _with_fsdp_weights(self, cut: BlockSplit, rows: float, tokens: float) -> TracedMemory:
        """With weights as FSDP brings them."""
        heads = self.model.plan().heads
        if cut.tensor == 1 or cut.tensor > heads or heads % _MORE:  # then there is little to sketch
            return self._trace(cut, rows, tokens)
        with_ring, alone = (replace(cut, tensor=1, sequence=False, ring=ring) for ring in (True, False))
        if not cut.sequence:  # what is between the linears stays whole; a ring's part is in both
            ends = (with_ring if cut.ring else alone), replace(cut, tensor=_FEW)
        else:  # a split vocabulary begins with two: one device is not on the line
            begin = replace(cut, tensor=_FEW, ring=False) if self.model.plan().vocabulary else alone
            ends = begin, replace(cut, tensor=2 * begin.tensor, sequence=True, ring=False)
        low, high = ((end.tensor, self._trace(end, rows, tokens)) for end in ends)
        # Through these two points, as a part that all ranks have and one that they share.
        between, beyond = 1 / low[0] - 1 / high[0], 1 / cut.tensor - 1 / high[0]
        found = {name: one + (getattr(low[1], name) - one) / between * beyond for name, one in asdict(high[1]).items()}
        if cut.ring and cut.sequence:
            more, less = (self._trace(one, rows, tokens) for one in (with_ring, alone))
            found = {name: one + (getattr(more, name) - getattr(less, name)) / cut.tensor
                     for name, one in found.items()}  # fmt: skip
        return TracedMemory(**found)

    def _trace(self, cut: BlockSplit, rows: float, tokens: float) -> TracedMemory:
        super().step_memory(cut, 1, tokens)
        return self.traces[cut, True].at(rows, tokens)


def sketch(known: ModelFacts) -> ModelFacts:
    """The same facts, quicker."""
    return CachedTraces(**{one.name: getattr(known, one.name) for one in fields(known)})
