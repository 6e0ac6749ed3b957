"""Computes the bytes on a device at each moment of a step that may be the fullest.

All numbers here exclude weights, optimizer state and a full set of gradients. So a moment at which few gradients exist
may be below zero.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from nemo_vfm.parallel.plan.plan import ParallelPlan
from nemo_vfm.perf.traced import TracedMemory


@dataclass(frozen=True, slots=True)
class StageMemory:
    """What of a model a device has, in bytes.

    Args:
        place: of the device in the pipeline.
        blocks: their number in each of its stages.
        first: whether it begins the model.
        last: whether it ends it.
        block_weights: of a block, whole, in the dtype of the arithmetic.
        outer_weights: of what is no block, likewise.
        block_gradients: of a block, as they are kept.
        all_gradients: as they are kept.
        last_gradients: of what only the last stage has.
        casts: whether each microbatch makes a copy of the weights in the dtype of the arithmetic.
        gathered: whether weights are shared, and gathered where they are needed.
        whole: numbers that learn in all of it, were none shared.
        copies: bytes of a block's weights in the dtype of the arithmetic, of those that are stored in fp32.
    """

    place: int
    blocks: Sequence[int]
    first: bool
    last: bool
    block_weights: int
    outer_weights: int
    block_gradients: int
    all_gradients: int
    last_gradients: int
    casts: bool
    gathered: bool
    whole: int
    copies: int


def step_moments(
    held: TracedMemory, part: StageMemory, plan: ParallelPlan, *, recompute: bool, microbatches: int
) -> dict[str, float]:  # fmt: skip
    """By the moment's name."""
    if plan.pipeline > 1:
        return _pipelined(held, part, plan, recompute, microbatches)
    return _one_after_another(held, part, recompute, microbatches)


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


def _pipelined(
    held: TracedMemory, part: StageMemory, plan: ParallelPlan, recompute: bool, microbatches: int
) -> dict[str, float]:
    """A stage, or several; what is in flight waits for its backward, and so do buffers for each microbatch."""
    kept = held.stream if recompute else held.block
    stages = len(part.blocks)
    one = held.entered + sum(part.blocks) / stages * kept
    one -= held.spared if part.first and not recompute else 0
    flying = in_flight(plan, part.place, microbatches)
    buffers = microbatches * held.stream * (2 * stages - part.first - part.last)
    there = buffers + _gathered_once(part) + held.stream
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


def _gathered_once(part: StageMemory) -> float:
    """Weights of all stages here, from their first use to the step's end, and their gradients in fp32."""
    if not part.gathered:
        return 0
    return sum(part.blocks) * part.block_weights + part.outer_weights + 4 * part.whole


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
