"""Predicts the seconds of a training step, part by part, for a model, a machine and a layout.

These overlaps are assumed, as `parallel/engine/torch_engine.py` works:

- tensor parallel, exchanges of heads and of frames, gathered keys: nothing hides them
- a ring of keys and values: hidden by the attention to those already there
- weights of a block (FSDP) and sums of gradients: hidden by the arithmetic of the block before, except for the first
- in a pipeline, weights are gathered once a step (with more than three virtual stages, torch frees and gathers them
  again, twice a round), and gradients are summed after the last microbatch, where nothing is left to hide them
- of a frozen model, linears have one product in backward, and gradients and updates are of its adapters alone; what
  the adapters compute themselves is not counted
- linears in FP8 send and gather what they would in bf16: they quantise what has arrived
- sends between stages: hidden by the work on another microbatch, except while the pipeline fills and empties
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from nemo_vfm.core.fp8 import Fp8
from nemo_vfm.parallel.plan.plan import ParallelPlan, shares
from nemo_vfm.perf.communication import GRADIENT_BYTES, Passes, activation_bytes, context_s, tensor_s
from nemo_vfm.perf.fp8_time import cast_bytes, fp8_flops_per_s, share_in_fp8
from nemo_vfm.perf.gpu_specs import GpuSpec, PublishedConstants
from nemo_vfm.perf.layouts import Degrees
from nemo_vfm.perf.model_work import ModelWork
from nemo_vfm.perf.network import Network, RankGroup

FP32_SLOWER = 15.0  # than bf16: 14.8 on an H100, 16 on an A100, by their data sheets
UPDATE_BYTES = 28  # that AdamW reads and writes for each parameter: weight, both moments, and the gradient read
_SENT_TO_HOST = 8  # bytes for each parameter: its gradient there, the weight back
_KEPT_STAGES = 3  # that torch's schedules keep gathered at a time


@dataclass(frozen=True, slots=True)
class Machine:
    """What a layout runs on."""

    gpu: GpuSpec  #: each of them
    network: Network  #: what joins them
    kernels: PublishedConstants = field(default_factory=PublishedConstants)  #: what share of their peak products reach


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of a step on the device that works longest; what is hidden behind arithmetic is not in it."""

    compute: float  #: products, attention, and what passes memory between them; recomputation too
    tensor: float  #: gathers and sums around split linears
    context: float  #: exchanges of keys, heads and time lines
    weights: float  #: gathered weights, shared and added gradients
    sends: float  #: between pipeline stages
    waits: float  #: the bubble
    update: float  #: of the optimizer

    @property
    def total(self) -> float:
        return self.compute + self.tensor + self.context + self.weights + self.sends + self.waits + self.update


@dataclass(frozen=True, slots=True)
class _BlockTime:
    """Seconds of one block and microbatch."""

    compute: Passes
    tensor: Passes
    context: Passes

    @property
    def forward(self) -> float:
        return self.compute.forward + self.tensor.forward + self.context.forward

    @property
    def backward(self) -> float:
        return self.compute.backward + self.tensor.backward + self.context.backward


@dataclass(frozen=True, slots=True)
class TimedStep:
    """What of a step's seconds does not depend on how data ranks share weights."""

    plan: ParallelPlan  #: the layout, its replicate and shard apart
    block: _BlockTime  #: one of its blocks
    blocks: int  #: of the device that works longest
    compute: float
    tensor: float
    context: float
    sends: float
    waits: float


@dataclass(frozen=True, slots=True)
class WeightsTime:
    """Seconds to bring so many weights together, to share out their gradients, and to add these over copies."""

    gather: float
    scatter: float
    copies: float


class Clock:
    """Tells the time of layouts of one model on one machine.

    Args:
        work: of the model on one sample.
        machine: what it runs on.
        fp32: whether products are in fp32.
        fp8: how the blocks' large linears are in FP8; None has them like all else.

    Raises:
        UserError: the GPU has no such products in FP8.
    """

    def __init__(self, work: ModelWork, machine: Machine, *, fp32: bool = False, fp8: Fp8 | None = None) -> None:
        self.work, self.machine = work, machine
        self.recipe = None if fp8 is None else fp8.recipe
        self.fp8_peak = 0.0 if fp8 is None else fp8_flops_per_s(machine.gpu, fp8)
        self.share_in_fp8 = 0.0 if fp8 is None else share_in_fp8(fp8, work.depth)
        self.peak = machine.gpu.flops_per_s / (FP32_SLOWER if fp32 else 1)
        self.itemsize = 4 if fp32 else 2
        # What several layouts have in common is reckoned once: there are a hundred thousand of them.
        self._blocks: dict[tuple[object, ...], _BlockTime] = {}
        self._held: dict[tuple[int, int], list[int]] = {}
        self._shared: dict[tuple[object, ...], WeightsTime] = {}

    def step(self, plan: ParallelPlan, rows: int, *, recompute: bool, offload: bool = False) -> StepTime:
        """One optimizer step with so many `rows`, samples of a device in one microbatch."""
        return self.shared_as(self.time_plan(plan, rows, recompute=recompute), plan, offload=offload)

    def time_plan(self, plan: ParallelPlan, rows: int, *, recompute: bool) -> TimedStep:
        """What does not depend on how data ranks share weights: with many GPUs there are ten ways for each layout."""
        block = self._block(plan, rows, recompute)
        # The device that works longest; of those in the middle any with most blocks will do.
        key = plan.pipeline, plan.virtual
        if key not in self._held:
            sizes = [len(part) for part in shares(self.work.depth, plan.stages)]
            self._held[key] = [sum(sizes[place :: plan.pipeline]) for place in range(plan.pipeline)]
        held, both = self._held[key], block.forward + block.backward
        most, last = max(held), plan.pipeline - 1
        ends_of = {(0, held[0]), (held.index(most), most), (last, held[last])}
        _, place, blocks = max((n * both + self._ends(plan, rows, at), at, n) for at, n in ends_of)
        ends = self._ends(plan, rows, place)
        each = plan.microbatches
        busy = each * (blocks * (block.forward + block.backward) + ends)
        sends = 0.0
        if plan.pipeline > 1:
            own = activation_bytes(self.work, plan, rows, self.itemsize) / (plan.tensor if plan.sequence else 1)
            send = self.machine.network.send_s(own, RankGroup(plan.pipeline, plan.world // plan.pipeline))
            late = max(0.0, send - blocks / plan.virtual * block.forward)
            sends = 2 * (plan.pipeline - 1) * send + 2 * each * plan.virtual * late
        return TimedStep(
            plan=plan, block=block, blocks=blocks,
            compute=each * (blocks * (block.compute.forward + block.compute.backward) + ends),
            tensor=each * blocks * (block.tensor.forward + block.tensor.backward),
            context=each * blocks * (block.context.forward + block.context.backward),
            sends=sends, waits=busy * wait_ratio(plan) if plan.pipeline > 1 else 0.0,
        )  # fmt: skip

    def shared_as(self, timed: TimedStep, at: ParallelPlan | Degrees, *, offload: bool) -> StepTime:
        """The whole step, with weights shared and copied as these degrees have it."""
        return StepTime(
            compute=timed.compute, tensor=timed.tensor, context=timed.context, weights=self._weights(timed, at),
            sends=timed.sends, waits=timed.waits, update=self._update(at, timed.blocks, offload),
        )  # fmt: skip

    def total(self, timed: TimedStep, at: ParallelPlan | Degrees, *, offload: bool) -> float:
        """The same as a sum, in the same order: it is asked some hundred thousand times."""
        weights, update = self._weights(timed, at), self._update(at, timed.blocks, offload)
        return timed.compute + timed.tensor + timed.context + weights + timed.sends + timed.waits + update

    def block_s(self, plan: ParallelPlan, rows: int) -> float:
        """Of one block and microbatch, forward and backward; a pipeline and data ranks do not matter for it."""
        block = self._block(plan, rows, False)
        return block.forward + block.backward

    def forward_s(self, plan: ParallelPlan, rows: int) -> float:
        """Of a forward pass alone, as a sampler runs it; no pipeline, and weights are there."""
        blocks = self.work.depth * self._block(plan, rows, False).forward
        return blocks + self._ends(plan, rows, 0) / (2 if self.work.frozen else 3)

    def _block(self, plan: ParallelPlan, rows: int, recompute: bool) -> _BlockTime:
        key = (plan.tensor, plan.sequence, plan.context, plan.attention, plan.ulysses, rows, recompute)
        if key not in self._blocks:
            linears, attention, outer, inner = self._linears(plan, rows), 0.0, 0.0, 0.0
            # What norms, activations and the like read and write: beside the linears' split sides a part, else all.
            for product in self.work.products:
                if product.split in ("row", "column"):
                    narrow, wide = (product.inputs, product.outputs)[:: 1 if product.split == "column" else -1]
                    outer, inner = outer + narrow, inner + wide
            numbers = inner / plan.tensor + outer / (plan.tensor if plan.sequence else 1)
            numbers *= rows * self.work.tokens / plan.context
            moved = self.machine.kernels.passes * numbers * self.itemsize / self.machine.gpu.bytes_per_s
            # Context ranks that exchange heads do not pass keys on.
            exchanging = {"ulysses": plan.context, "ring_ulysses": plan.ulysses}.get(plan.attention, 1)
            ring = max(1, plan.context // exchanging)
            for one in self.work.attentions:
                reached = self.machine.kernels.attention(one.length / (ring if one.over == "tokens" else 1))
                flops = one.flops * rows / plan.tensor / plan.context / (2 if one.causal else 1)
                attention += flops / (self.peak * reached)
            least = self.machine.kernels.launch_s
            forward = max(least, linears.forward + attention + moved)
            # Backward computes the scores of attention again.
            backward = max(2 * least, linears.backward + 2.5 * attention + 2 * moved)
            network, again = self.machine.network, 1 if recompute else 0
            tensor = tensor_s(self.work, plan, network, rows, self.itemsize)
            sent, plain = context_s(self.work, plan, network, rows, self.itemsize)
            hidden = attention * (1 - 1 / ring)
            context = Passes(plain.forward + max(0.0, sent.forward - hidden),
                             plain.backward + max(0.0, sent.backward - 2.5 * hidden))  # fmt: skip
            compute = Passes(forward, backward)
            self._blocks[key] = _BlockTime(
                *(Passes(one.forward, one.backward + again * one.forward) for one in (compute, tensor, context))
            )
        return self._blocks[key]

    def _linears(self, plan: ParallelPlan, rows: int) -> Passes:
        """A block's linears; of blocks of which some are in FP8, the mean."""
        times = 1 if self.work.frozen else 2  # products of a linear: for its input's gradient, and for its weight's
        wide = self._products_s(plan, rows)
        if self.recipe is None:
            return Passes(wide, times * wide)
        quick, share, rate = self._products_s(plan, rows, fp8=True), self.share_in_fp8, self.machine.gpu.bytes_per_s
        # What quantising the operands of the linears takes.
        m, learns = rows * self.work.tokens / plan.context, not self.work.frozen
        moved = [cast_bytes(self.recipe, m, inputs, outputs, learns=learns) for inputs, outputs in self._sides(plan)]
        forward, backward = sum(one.forward for one in moved) / rate, sum(one.backward for one in moved) / rate
        return Passes((1 - share) * wide + share * (quick + forward),
                      (1 - share) * times * wide + share * (times * quick + backward))  # fmt: skip

    def _products_s(self, plan: ParallelPlan, rows: int, *, fp8: bool = False) -> float:
        """Forward; linears of a text or a sample take the time of their FLOPs at the others' rate."""
        m, seconds, flops = rows * self.work.tokens / plan.context, 0.0, 0.0
        peak = self.fp8_peak if fp8 else self.peak
        reached = self.machine.kernels.linear_fp8 if fp8 else self.machine.kernels.linear
        for inputs, outputs in self._sides(plan):
            flops += 2 * m * inputs * outputs
            seconds += 2 * m * inputs * outputs / (peak * reached(m, inputs, outputs))
        all_flops = rows * self.work.products_flops / plan.context / plan.tensor
        return seconds * all_flops / flops if flops else all_flops / peak

    def _sides(self, plan: ParallelPlan) -> Iterator[tuple[float, float]]:
        """(inputs, outputs) on one device of each linear over a sample's own tokens."""
        for product in self.work.products:
            if product.split in ("row", "column"):
                parts = {product.split: plan.tensor}  # the side that tensor ranks share
                yield product.inputs / parts.get("row", 1), product.outputs / parts.get("column", 1)

    def _ends(self, plan: ParallelPlan, rows: int, place: int) -> float:
        """What the first or last stage does besides its blocks, forward and backward."""
        tokens, last = rows * self.work.tokens / plan.context, plan.pipeline - 1
        alone = plan.tensor if plan.sequence else 1
        first_s = self.work.first_flops / alone if place == 0 else 0.0
        last_s = self.work.last_flops / (plan.tensor if self.work.last_split else alone) if place == last else 0.0
        share = self.machine.kernels.linear(tokens, self.work.width, self.work.width)
        times = 2 if self.work.frozen else 3
        return times * rows / plan.context * (first_s + last_s) / (self.peak * share)

    def _weights(self, timed: TimedStep, at: ParallelPlan | Degrees) -> float:
        work, plan, block, blocks = self.work, timed.plan, timed.block, timed.blocks
        own = work.block_split / plan.tensor + work.block_whole
        rest = max(0, work.parameters - work.depth * (work.block_split + work.block_whole)) / plan.pipeline
        one, ends = self._moved_weights(at, own), self._moved_weights(at, rest / plan.tensor)
        fetched = one.gather + blocks * max(0.0, one.gather - block.forward)
        learned = self.work.learned  # gradients are of these alone
        if plan.pipeline > 1:
            all_own = self._moved_weights(at, own * blocks + rest / plan.tensor)
            rounds = math.ceil(plan.microbatches / plan.pipeline) if plan.virtual > _KEPT_STAGES else 1
            # What a round over all virtual stages does not hide of bringing each together, forward and backward.
            busy = blocks * (block.forward + block.backward)
            again = (rounds - 1) * max(0.0, 2 * one.gather * blocks - plan.pipeline * busy)
            return fetched + again + ends.gather + learned * (all_own.scatter + all_own.copies)
        given = learned * (one.scatter + one.copies)
        shared = given + blocks * max(0.0, one.gather + given - block.backward)
        return plan.microbatches * (fetched + shared + 2 * ends.gather + learned * (ends.scatter + ends.copies))

    def _moved_weights(self, at: ParallelPlan | Degrees, parameters: float) -> WeightsTime:
        """Weights are shared over shard x context, and copied over replicate; one device would hold `parameters`."""
        key = at.tensor, at.context, at.shard, at.replicate, parameters
        if key not in self._shared:
            group, network = RankGroup(at.shard * at.context, at.tensor), self.machine.network
            copies = RankGroup(at.replicate, at.tensor * group.size)
            self._shared[key] = WeightsTime(
                network.gather_s(parameters * self.itemsize, group),
                network.gather_s(parameters * GRADIENT_BYTES, group),
                network.reduce_s(parameters * GRADIENT_BYTES / group.size, copies),
            )
        return self._shared[key]

    def _update(self, at: ParallelPlan | Degrees, blocks: int, offload: bool) -> float:
        """In host memory the link to it counts, for its own work too: nothing is known of that memory."""
        own = self.work.learned * (self.work.block_split / at.tensor + self.work.block_whole) * blocks
        own /= at.shard * at.context
        if offload:
            return own * (UPDATE_BYTES + _SENT_TO_HOST) / self.machine.network.host.bytes_per_s
        return own * UPDATE_BYTES / self.machine.gpu.bytes_per_s


def wait_ratio(plan: ParallelPlan) -> float:
    """What a device waits in a step, over what it works."""
    wait = (plan.pipeline - 1) / (plan.virtual * plan.microbatches)
    return wait / 3 if plan.schedule == "zero_bubble" else wait
