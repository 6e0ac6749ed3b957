"""Predicts the peak bytes of a training step on the fullest device.

`facts` examines a model once. After that `memory` is closed form, except for a trace of two blocks the first time that
a way of splitting them is needed. Tensors are counted: what CUDA and NCCL take for themselves, and what the allocator
cannot use, comes on top.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal

import torch

from nemo_vfm.core.fp8 import Fp8
from nemo_vfm.parallel.plan.plan import ParallelPlan, shares
from nemo_vfm.perf.fp8_time import share_in_fp8
from nemo_vfm.perf.model_facts import ModelFacts as ModelFacts
from nemo_vfm.perf.model_facts import Where
from nemo_vfm.perf.model_facts import facts as facts
from nemo_vfm.perf.traced import BlockSplit, TracedMemory

Recompute = Literal["none", "blocks"]
_OUTER = ("every", "first", "last")  # of a model, what is no block


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes on the fullest device."""

    parameters: int  #: weights and buffers, all the time
    gradients: int  #: of them, all at once at a step's end
    optimizer: int  #: its state, all the time
    #: whatever else there is at the fullest moment: what waits for backward, what is being computed, weights that are
    #: gathered; less the gradients that are not there yet
    activations: int
    average: int = 0  #: the running average of weights
    beside: int = 0  #: other networks on the device, all the time: encoders and codecs
    workspaces: int = 0  #: of cuBLAS, all the time; `memory` knows no GPU and leaves them out
    host: int = 0  #: in host memory, where the optimizer is kept there
    moment: str = ""  #: the fullest, in words

    @property
    def total(self) -> int:
        standing = self.parameters + self.gradients + self.optimizer + self.average + self.beside + self.workspaces
        return standing + self.activations


def memory(
    known: ModelFacts, plan: ParallelPlan, *, precision: Literal["fp32", "bf16"] = "bf16",
    fp8: Fp8 | None = None, recompute: Recompute = "none", microbatch_rows: int = 1, microbatches: int | None = None,
    offload_optimizer: bool = False, average: bool = False, gpu: bool = True,
) -> Memory:  # fmt: skip
    """What a training step needs on the device that needs most.

    Args:
        known: of the model.
        plan: of the devices.
        precision: of the arithmetic; weights, their gradients and the optimizer's state are fp32 either way, but for
            the linears of a frozen model, which are stored in it.
        fp8: how the blocks' large linears are in FP8; their weights stay as `precision` has them.
        recompute: the engine's.
        microbatch_rows: samples that a device computes at once.
        microbatches: how often it does in a step; None takes the plan's.
        offload_optimizer: whether the optimizer's state is in host memory.
        average: whether a running average of the weights is kept.
        gpu: whether kernels are those of a GPU; else of a CPU.
    """
    traced = None
    if fp8 is not None:  # of all blocks alike; delayed scaling holds at most what current does, but for its histories
        recipe = "current" if fp8.recipe == "delayed" else fp8.recipe
        traced = Fp8(recipe=recipe, format=fp8.format, pow2=fp8.pow2)
    sharing = plan.shard * plan.context  # ranks that share weights
    cut = BlockSplit(
        tensor=plan.tensor, sequence=plan.sequence, narrow=precision == "bf16", gathered=sharing > 1,
        ring=plan.context > 1, gpu=gpu, fp8=traced,
    )  # fmt: skip
    held = _step_memory(known, cut, fp8, microbatch_rows, known.tokens / plan.context)
    count = microbatches or plan.microbatches
    key = plan.pipeline, plan.virtual, plan.tensor, sharing, cut.narrow, cut.gathered, cut.gpu, fp8
    if key not in known.standing:
        known.standing[key] = [*_devices(known, plan, cut, fp8)]
    standing: list[StageMemory] = known.standing[key]
    again, found = recompute == "blocks", list[Memory]()
    for one in standing:
        if plan.pipeline > 1:
            moments = _in_flight(held, one, plan, again, count)
        else:
            moments = _one_after_another(held, one, again, count)
        moments["the optimizer's update"] = one.updating
        fullest = max(moments, key=moments.__getitem__)
        found.append(Memory(
            parameters=one.parameters, gradients=one.gradients, optimizer=0 if offload_optimizer else one.state,
            activations=round(moments[fullest]), average=one.average if average else 0,
            host=one.state + 2 * one.gradients if offload_optimizer else 0, moment=fullest,
        ))  # fmt: skip
    return max(found, key=lambda one: one.total)


def _step_memory(known: ModelFacts, cut: BlockSplit, fp8: Fp8 | None, rows: int, tokens: float) -> TracedMemory:
    """What a step holds; where some blocks stay in bf16, a block keeps the mean of both kinds."""
    held = known.step_memory(cut, rows, tokens)
    if fp8 is None or (share := share_in_fp8(fp8, known.depth)) == 1:
        return held
    wide = known.step_memory(replace(cut, fp8=None), rows, tokens)
    most = {one.name: max(getattr(held, one.name), getattr(wide, one.name)) for one in fields(TracedMemory)}
    mean = {name: share * getattr(held, name) + (1 - share) * getattr(wide, name) for name in ("block", "spared")}
    return TracedMemory(**{**most, **mean})


@dataclass(frozen=True, slots=True)
class StageMemory:
    """What a device has whatever its microbatches are, in bytes."""

    place: int  #: of the device in the pipeline
    blocks: Sequence[int]  #: their number in each of its stages
    first: bool  #: whether it begins the model
    last: bool  #: whether it ends it
    block_weights: int  #: of a block, whole, in the dtype of the arithmetic
    outer_weights: int  #: of what is no block, likewise
    block_gradients: int  #: of a block, as they are kept
    all_gradients: int  #: as they are kept
    last_gradients: int  #: of what only the last stage has
    casts: bool  #: whether each microbatch makes a copy of the weights in the dtype of the arithmetic
    gathered: bool  #: whether weights are shared, and gathered where they are needed
    whole: int  #: numbers that learn in all of it, were none shared
    copies: int  #: bytes of a block's weights in the dtype of the arithmetic, of those that are stored in fp32
    parameters: int  #: weights and buffers
    gradients: int  #: of them, at a step's end
    state: int  #: of the optimizer
    updating: float  #: what there is for a while when weights are updated
    average: int  #: a running average of the weights, where one is kept


def _devices(known: ModelFacts, plan: ParallelPlan, cut: BlockSplit, fp8: Fp8 | None) -> Iterator[StageMemory]:
    """Those that may need most: the ends, and two between, which have ever fewer microbatches in flight."""
    sizes = [len(own) for own in shares(known.depth, plan.stages)]
    each = [tuple(sizes[place :: plan.pipeline]) for place in range(plan.pipeline)]
    most, end = max(range(plan.pipeline), key=lambda place: sum(each[place])), plan.pipeline - 1
    sharing, tensor, width = plan.shard * plan.context, plan.tensor, 2 if cut.narrow else 4
    for place in sorted({0, min(1, end), most, end}):
        counts: dict[Where, int] = {"block": sum(each[place]), "every": 1, "first": place == 0, "last": place == end}
        # Each of several stages keeps all of `every`.
        ranks = {where: 1 if where == "every" and plan.virtual > 1 else sharing for where in counts}
        learned = sum(n * known.shard_numel(where, tensor, ranks[where], learning=True) for where, n in counts.items())
        stored = sum(n * known.num_bytes(where, tensor, ranks[where], narrow=cut.narrow) for where, n in counts.items())
        gradients = {where: 4 * known.shard_numel(where, tensor, sharing, learning=True) for where in counts}
        histories = 0
        if fp8 is not None and fp8.recipe == "delayed":  # the amax of so many steps of three operands, their factors
            block = share_in_fp8(fp8, known.depth) * known.large_linears * 3 * 4 * (fp8.history + 1)
            histories = round(counts["block"] * block)
        # While weights are updated: all at once with a copy of a moment, or from weight to weight, as on a CPU.
        updating = 4 * learned if cut.gpu and known.update_copies else 0
        if not cut.gpu:
            learning = [one for one in (*known.block, *known.first, *known.last, *known.every) if one.learns]
            updating = 8 * max(weight.shard_numel(tensor, sharing) for weight in learning)
        yield StageMemory(
            place=place, blocks=each[place], first=place == 0, last=place == end,
            block_weights=width * known.local("block", tensor),
            outer_weights=width * sum(n * known.local(where, tensor) for where, n in counts.items() if where in _OUTER),
            block_gradients=gradients["block"],
            all_gradients=sum(n * gradients[where] for where, n in counts.items()),
            last_gradients=counts["last"] * gradients["last"], casts=cut.narrow and not cut.gathered,
            gathered=cut.gathered, copies=2 * known.local("block", tensor, wide=True),
            whole=sum(n * known.shard_numel(where, tensor, 1, learning=True) for where, n in counts.items()),
            parameters=stored + known.buffers + histories, gradients=4 * learned, updating=updating,
            state=known.kept.by(torch.float32, learned),
            average=4 * learned if known.frozen else stored + known.buffers,
        )  # fmt: skip


def _one_after_another(held: TracedMemory, part: StageMemory, recompute: bool, microbatches: int) -> dict[str, float]:
    """A model whole; gradients come to be in the first microbatch's backward."""
    (n,) = part.blocks
    again = microbatches > 1
    there = 0 if again else -part.all_gradients
    grown = 0 if again else part.block_gradients  # by each block's backward
    left = held.output_left - (part.last_gradients if again else 0)
    kept = held.stream if recompute else held.block
    casts = n * part.copies if recompute and part.casts else 0
    back = _block_backward(held, recompute)
    full = there + held.entered + n * kept - (0 if recompute else held.spared)
    outer, block = (part.outer_weights, part.block_weights) if part.gathered else (0, 0)
    # At a block's turn its weights are there, and what came from the wire for it and comes for the next one.
    blocks = outer + 3 * block
    return {
        "the last block's forward": full + casts - kept + held.block_forward + outer + 2 * block,
        "the last layers": full + casts + held.output_forward + outer + block,
        "the loss's backward": full + held.output_backward + outer + block,
        "the last block's backward": full + left + back + blocks,
        "the first block's backward": full - (n - 1) * kept + left + (n - 1) * grown + back + blocks,
        "the first layers' backward": there + held.entered + left + n * grown + held.embed_backward + outer,
    }


def _block_backward(held: TracedMemory, recompute: bool) -> float:
    """The most in it, over what was kept for it; computed again is all but the block's output."""
    if not recompute:
        return held.block_backward
    return max(held.block_forward, held.block + held.block_backward) - held.stream


def _in_flight(
    held: TracedMemory, part: StageMemory, plan: ParallelPlan, recompute: bool, microbatches: int
) -> dict[str, float]:
    """A stage, or several; what is in flight waits for its backward, and so do buffers for each microbatch."""
    kept = held.stream if recompute else held.block
    stages = len(part.blocks)
    one = held.entered + sum(part.blocks) / stages * kept
    one -= held.spared if part.first and not recompute else 0
    flying = in_flight(plan, part.place, microbatches)
    buffers = microbatches * held.stream * (2 * stages - part.first - part.last)
    # Weights of all stages here, from their first use to the step's end, and their gradients in fp32.
    weights = sum(part.blocks) * part.block_weights + part.outer_weights + 4 * part.whole if part.gathered else 0
    there = buffers + weights + held.stream
    back = _block_backward(held, recompute)
    moments = {"the last microbatch's backward": there + (flying - 1) * one + held.entered + kept + back}
    if flying < microbatches * stages:  # another one takes the place of the first, when all gradients are there
        moments["a block's backward"] = there + flying * one + back
    else:
        moments["the first microbatch's backward"] = there + flying * one - part.all_gradients + back
    if part.last:
        last = there + flying * one - (0 if microbatches > 1 else part.all_gradients)
        moments["the last layers"] = last + held.output_forward
        moments["the loss's backward"] = last + held.output_backward
    return moments


def in_flight(plan: ParallelPlan, place: int, microbatches: int) -> int:
    """Stages' microbatches that wait for their backward on a device of the pipeline, at most.

    1F1B: as many as there are stages from here on. With several stages a device (Narayanan et al. 2021, 2.2), those of
    all but its last one in rounds as long as the pipeline, and two for each device behind it.
    """
    if plan.virtual == 1:
        return min(microbatches, plan.pipeline - place)
    each_round = microbatches // max(1, microbatches // plan.pipeline)
    warm = (plan.virtual - 1) * each_round + 2 * (plan.pipeline - 1 - place)
    return min(warm + 1, microbatches * plan.virtual)
