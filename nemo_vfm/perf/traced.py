"""Traces a step of two of a model's blocks on tensors without memory, and records the bytes it holds over time.

Two blocks are enough for any number, since blocks are alike. A few sizes are enough for any, since what a step holds
is linear in samples and in tokens: no kernel keeps the scores of attention.
Shape letters: B samples, S tokens, D width.
"""

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nemo_vfm.core.fp8 import Fp8
from nemo_vfm.core.without_compiler import without_compiler
from nemo_vfm.parallel.apply.frozen_weights import castable_weights
from nemo_vfm.parallel.apply.pipeline_stage import Cuttable
from nemo_vfm.parallel.fp8.use_fp8 import use_fp8
from nemo_vfm.parallel.layers.linear import native_products
from nemo_vfm.parallel.layers.token_layout import SharedHead, TokenLayout, under
from nemo_vfm.parallel.plan.static_memory import split_axis
from nemo_vfm.perf.live import LiveBytes
from nemo_vfm.perf.model_work import num_parameters
from nemo_vfm.perf.stand_ins import Kernels, Shapes, exchange_as_dtensor, fake_inputs, fp8_products_of

#: Tokens of a trace, at least: what is computed in runs of 256 (parallel/layers/vocab_parallel_loss.py) then has some.
_RUNS = 512
#: That have a gradient, with two blocks: before, between and after them.
_STREAMS = 3


@dataclass(frozen=True, slots=True)
class BlockSplit:
    """What decides how a block computes on one device."""

    tensor: int = 1  #: devices that split the large linears
    sequence: bool = False  #: whether they also split the tokens between these
    narrow: bool = True  #: bf16 arithmetic; else fp32
    #: whether weights come in the dtype of the arithmetic, as FSDP brings them; else autocast makes copies
    gathered: bool = False
    ring: bool = False  #: whether tokens are spread over context ranks
    gpu: bool = True  #: whether attention and norms are those of a GPU; else of a CPU
    fp8: Fp8 | None = None  #: how the large linears are in FP8; None has them in the arithmetic of all else


@dataclass(frozen=True, slots=True)
class TracedMemory:
    """Bytes that a step holds at its moments."""

    entered: float  #: once the first block can begin, inputs included
    block: float  #: what each block leaves for backward
    #: of this, what the first block does not leave, since nothing is kept of what comes before the first weights that
    #: learn. Recomputation keeps the block's input all the same.
    spared: float
    stream: float  #: of this, what comes out of it
    block_forward: float  #: the most while a block is computed, over what there was before it
    block_backward: float  #: the most while its gradients are, over what there was before
    output_forward: float  #: the most from the last block to its output, over what there was after that block
    output_kept: float  #: what of it waits for backward
    output_backward: float  #: the most until the last block's backward begins, over the same
    #: what is there then over the same: gradients of the last weights, and of the last block's output
    output_left: float
    embed_backward: float  #: the most after the first block's backward, over what there was at its end


Moments = dict[str, list[int]]
Line = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class AffineMemory:
    """What a step holds, as a function of its samples and of their tokens."""

    #: of each number of `TracedMemory`, the moments that may be the fullest; each is fixed + samples (each + tokens *
    #: of_token), and given as these three
    lines: Mapping[str, Sequence[Line]]

    def at(self, rows: float, tokens: float) -> TracedMemory:
        """For so many samples of so many tokens."""
        size = rows * tokens
        return TracedMemory(**{n: max(f + rows * e + size * t for f, e, t in lines) for n, lines in self.lines.items()})


def trace_step(model: Cuttable, shapes: Shapes, cut: BlockSplit, *, tokens: int, single: bool) -> AffineMemory:
    """What a step of two blocks holds.

    Args:
        model: on the meta device, its blocks reduced to two.
        shapes: of its inputs.
        cut: how it is spread.
        tokens: of a sample, about; it does not matter but for what is computed in runs.
        single: for one sample at a time, of which torch copies less than of several.
    """
    few, first = max(_RUNS, tokens // 4), 1 if single else 2
    many = max(tokens, 2 * few)
    small, s = _moments(model, shapes, cut, first, few)
    large, m = _moments(model, shapes, cut, first, many)
    more, _ = (small, s) if single else _moments(model, shapes, cut, first + 1, few)
    found = {}
    for name in small:
        series = [one[name] for one in (small, large, more)]
        if len({len(one) for one in series}) > 1:  # other operations for other sizes
            series = [[max(one)] for one in series]
        lines = set[Line]()
        for a, b, c in zip(*series, strict=True):
            of_token = (b - a) / (m - s) / first
            row = 0 if single else c - a
            lines.add((0.0, a - s * of_token, of_token) if single else (a - first * row, row - s * of_token, of_token))
        kept: list[Line] = []  # without those that another is above whatever the size
        for line in sorted(lines, reverse=True):
            if not any(all(x >= y for x, y in zip(other, line, strict=True)) for other in kept):
                kept.append(line)
        found[name] = kept
    return AffineMemory(found)


def _moments(model: Cuttable, shapes: Shapes, cut: BlockSplit, rows: int, tokens: int) -> tuple[Moments, int]:
    """What was alive when, and the tokens of a sample."""
    small, split = copy.deepcopy(model), cut.tensor if cut.sequence else 1
    if cut.fp8 is not None:
        use_fp8(_module(small), cut.fp8)
    with ExitStack() as stack:
        stack.enter_context(without_compiler())
        live = stack.enter_context(LiveBytes())
        how, narrows = small.plan(), castable_weights(_module(small)) if cut.narrow else set()
        made: dict[int, nn.Parameter] = {}
        for path, module in _module(small).named_modules():
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    axis = split_axis(f"{path}.{name}", how)
                    shape = [n // cut.tensor if place == axis else n for place, n in enumerate(parameter.shape)]
                    narrow = (cut.narrow and cut.gathered) or f"{path}.{name}" in narrows
                    dtype = torch.bfloat16 if narrow else torch.float32
                    if id(parameter) not in made:
                        made[id(parameter)] = nn.Parameter(torch.empty(shape, dtype=dtype), parameter.requires_grad)
                    module._parameters[name] = made[id(parameter)]
            module._buffers |= {name: torch.empty_like(one) for name, one in module._buffers.items() if one is not None}
        inside, count = fake_inputs(model, shapes, rows, tokens, split)
        outside = fake_inputs(model, shapes, rows, tokens, split, 1 / split)[0] if cut.sequence else inside
        stack.enter_context(native_products())
        stack.enter_context(fp8_products_of(gpu=cut.gpu))
        exchange_as_dtensor(small, cut.tensor, cut.sequence)
        sharing = small.plan().ranks_per_kv_head(cut.tensor)
        stack.enter_context(under(TokenLayout(shared_head=SharedHead(sharing) if sharing > 1 else None)))
        stack.enter_context(Kernels(gpu=cut.gpu, ring=cut.ring))
        live.begin(
            [*_module(small).parameters(), *_module(small).buffers()], sum(one.nbytes for one in inside.values())
        )
        return _Step(small, inside, outside, live, cut.narrow).run(), count


class _Step:
    """Forward and backward, with what was alive at each moment."""

    def __init__(
        self, model: Cuttable, inside: Mapping[str, Tensor], outside: Mapping[str, Tensor], live: LiveBytes,
        narrow: bool,
    ) -> None:  # fmt: skip
        self._model, self._inside, self._outside, self._live, self._narrow = model, inside, outside, live, narrow
        self._after: list[int] = []  # each block's forward
        self._during: list[list[int]] = []
        self._back: list[int] = []  # when the gradient of each stream is there, the last first
        self._before: list[list[int]] = []
        self._stream = self._returned = 0
        self._entered: int | None = None  # only where nothing before the first block learns

    def run(self) -> Moments:
        """Those that are `TracedMemory`."""
        how = self._model.plan()
        for module in _module(self._model).get_submodule(how.blocks).children():
            module.register_forward_pre_hook(self._begins)
            module.register_forward_hook(self._ends)
        loss = self._forward()
        self._left = self._live.now
        loss.backward()  # type: ignore[no-untyped-call]
        if len(self._back) < _STREAMS:  # nothing before the first block learns, so backward ends in it
            self._gradient(loss)
        at_end = self._live.growths()
        first, second = self._after
        block, last, _, begin = second - first, *self._back
        entered, end = first - block, second
        if self._entered is not None:  # the first block keeps less than others, and maybe not even its input
            entered, end = self._entered, self._returned
        return {
            "entered": [entered],
            "block": [block],
            "spared": [entered + block - first + second - end],
            "stream": [self._stream],
            "block_forward": [now - first for now in self._during[1]],
            "block_backward": [now - last for now in self._before[1]],
            "output_forward": [now - end for now in self._leaving],
            "output_kept": [self._left - end],
            "output_backward": [now - end for now in self._before[0]],
            "output_left": [last - end],
            "embed_backward": [now - begin for now in at_end],
        }

    def _forward(self) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=self._narrow):
            model, how = self._model, self._model.plan()
            context = model.context(**self._inside)
            split = {*how.column, *how.vocabulary}
            enters, leaves = (
                self._inside if split & {*ends, *how.every} else self._outside for ends in (how.first, how.last)
            )
            other = context if self._outside is self._inside else model.context(**self._outside)
            x = model.embed(**_inputs_of(enters, model.embed), context=context if enters is self._inside else other)
            x = model.run_blocks(x, context)
            self._returned = self._live.now
            output = model.output(
                x, **_inputs_of(leaves, model.output, 1), context=context if leaves is self._inside else other
            )
            self._leaving = self._live.growths()
        if output.dim() > 2:
            output = (output.float() - torch.empty_like(output, dtype=torch.float32)).square()
        return output.sum()

    def _begins(self, _: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self._live.growths()
        if self._after:
            return
        if inputs[0].requires_grad:
            inputs[0].register_hook(self._gradient)  # type: ignore[no-untyped-call]
        else:
            self._entered = self._live.now

    def _ends(self, _: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        self._during.append(self._live.growths())
        self._after.append(self._live.now)
        self._stream = output.nbytes
        output.register_hook(self._gradient)  # type: ignore[no-untyped-call]

    def _gradient(self, _: Tensor) -> None:
        self._before.append(self._live.growths())
        self._back.append(self._live.now)


def _module(model: Cuttable) -> nn.Module:
    assert isinstance(model, nn.Module)
    return model


def _inputs_of(inputs: Mapping[str, Tensor], part: Callable[..., Tensor], skipped: int = 0) -> dict[str, Tensor]:
    wanted = [name for name in inspect.signature(part).parameters if name != "context"][skipped:]
    return {name: inputs[name] for name in wanted if name in inputs}


def two_blocks(model: Cuttable) -> Cuttable:
    """A copy of a model with its first block twice, and no other; with its largest where blocks differ."""
    small = above = copy.copy(_module(model))
    path = model.plan().blocks
    first = max(small.get_submodule(path).children(), key=num_parameters)
    *outer, last = path.split(".")
    above._modules = dict(above._modules)
    for name in outer:  # only what holds the blocks is copied before the others are left out
        below = copy.copy(above.get_submodule(name))
        below._modules = dict(below._modules)
        above._modules[name] = below
        above = below
    above._modules[last] = nn.ModuleList([first, copy.deepcopy(first)])
    return copy.deepcopy(small)  # type: ignore[return-value]
