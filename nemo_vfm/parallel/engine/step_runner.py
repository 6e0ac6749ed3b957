"""Runs the optimizer steps of a model that an engine has built, with the same sums on any layout.

Every rank adds up weight times loss over its samples and tokens, unscaled. Then one all-reduce of the sums and of each
updater's squared norm tells every rank what to divide by. So nothing depends on how samples, tokens or layers are
spread.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor, nn

from nemo_vfm.core.device import device
from nemo_vfm.core.precision import Precision
from nemo_vfm.core.types.batch import Batch
from nemo_vfm.core.types.factory import Factory
from nemo_vfm.core.types.sample_batches import PackedBatch
from nemo_vfm.core.types.task import ModelInputs, ScoresSamples, Task
from nemo_vfm.parallel.apply.frozen_weights import learned_state
from nemo_vfm.parallel.checkpoint.checkpoint_ranks import gather_group
from nemo_vfm.parallel.checkpoint.checkpoint_reader import fill
from nemo_vfm.parallel.engine.nonfinite_guard import NonFinite
from nemo_vfm.parallel.layers.token_layout import TokenLayout, under
from nemo_vfm.parallel.plan.plan import ParallelPlan
from nemo_vfm.parallel.plan.sharding_spec import OptimizerFactory
from nemo_vfm.parallel.ranks.gather import Gather

if TYPE_CHECKING:
    from nemo_vfm.parallel.apply.pipeline_schedule import RankPipeline

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one optimizer step did."""

    loss: float  #: mean over the samples of the global batch, by their weights
    grad_norm: float  #: global L2 norm before clipping
    lr: float  #: learning rate of the first parameter group; 0 where the step was skipped, since it is not finite
    num_samples: int  #: samples of the global batch
    #: of the model's inputs, one mapping a micro-batch, for counting arithmetic
    shapes: list[Shapes] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class EngineInputs:
    """What an engine is given to start from."""

    model: Factory[[], nn.Module]
    task: Task
    optimizer: OptimizerFactory
    precision: Precision
    seed: int
    plan: ParallelPlan = field(default_factory=ParallelPlan)


class Updater(Protocol):
    """Updates one kind of weights or state: dense weights, embedding tables, the histories of FP8.

    In each step the engine calls `begin`, runs forward and backward, then calls `reduce`, `squared_norm`, and either
    `apply` or `discard`: on every rank, of every updater, in the same order. What a kind does not need does nothing.
    """

    group: str  #: the name of its tensors in a checkpoint

    def begin(self) -> None:
        """Drop the gradients of the step before."""
        return

    def reduce(self) -> None:
        """Sum the gradients over the ranks that have parts of them."""
        return

    def squared_norm(self) -> float:
        """This rank's share of the sum of squares of the summed gradients.

        Over all ranks it counts every number once. It is not finite where a gradient is not, and 0 for gradients that
        take no part in clipping.
        """
        return 0.0

    def set_lr(self, lr_factor: float) -> None:
        """Set the learning rates of the coming steps to `lr_factor` times the recipe's."""
        return

    def apply(self, divisor: float, clip_factor: float) -> None:
        """Update with (summed gradients / divisor * clip_factor)."""
        ...

    def discard(self) -> None:
        """End a step without an update; gradients that `begin` drops may stay until then, to be looked at."""
        return

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint keeps beside the model's weights; every rank must call it."""
        ...

    def load(self, state: Mapping[str, Tensor], ranks: Gather) -> None:
        """The inverse of `state`, of which each rank reads its part; every rank must call it.

        Raises:
            CorruptCheckpoint: it is another model's.
        """
        ...


class DenseUpdater(Updater, Protocol):
    """Updates the parameters of a model by one of torch's optimizers."""

    optimizer: torch.optim.Optimizer

    def set_lr(self, lr_factor: float) -> None:
        """See `Updater`; each group's initial rate is where torch's schedulers look for it."""
        for group in self.optimizer.param_groups:
            group["lr"] = group.setdefault("initial_lr", float(group["lr"])) * lr_factor

    def gradients(self) -> dict[str, Tensor]:
        """Those of the last step by parameter, this rank's part where others have more; every rank must call it."""
        ...


#: Of each microbatch, the sum of its losses by their weights, which is yet to be sent backward, and of the weights.
Forwards = Iterator[tuple[Tensor, float]]


def backward_each(forwards: Forwards, count: int) -> tuple[float, float]:
    """(sum of losses by their weights, sum of the weights), after the backward of each of `count` microbatches."""
    loss, weight = 0.0, 0.0
    for one, own_weight in forwards:
        one.backward()  # type: ignore[no-untyped-call]
        loss, weight = loss + float(one.detach()), weight + own_weight
    return loss, weight


@dataclass
class StepRunner:
    """A model that trains under a plan, and what updates it."""

    parts: EngineInputs  #: what the engine was given
    model: nn.Module  #: this rank's part, on its device
    layout: TokenLayout  #: of tokens and heads
    weights: DenseUpdater  #: updates the parameters
    others: Sequence[Updater]  #: update everything else
    pipeline: "RankPipeline | None" = None  #: the stages of this rank, where blocks are cut
    #: runs forward and backward of the microbatches of a rank that has all blocks
    backward: Callable[[Forwards, int], tuple[float, float]] = backward_each
    clip_norm: float | None = None  #: the gradient's global L2 norm is scaled down to this; None leaves it
    #: what becomes of a step whose loss or gradient is not a number
    nonfinite: NonFinite = field(default_factory=NonFinite)
    #: Called with each micro-batch that is trained on, once `tags` has its scores; None computes none.
    on_scores: Callable[[ModelInputs], None] | None = None

    def __post_init__(self) -> None:
        self._updaters: list[Updater] = [*self.others, self.weights]
        self._num_ranks = self.parts.plan.world
        self._alike = self._num_ranks / self.parts.plan.data  # ranks that count the same samples
        self._device, self._autocast = device(), self.parts.precision.autocast()

    def set_lr(self, lr_factor: float) -> None:
        """Set all learning rates of the coming steps to `lr_factor` times the recipe's."""
        for one in self._updaters:
            one.set_lr(lr_factor)

    def step(self, microbatches: Sequence[Batch]) -> StepResult:
        """One optimizer step over a global batch, of which these are this rank's; `parallel.microbatches` cuts each.

        UserError if the loss is not finite, on any rank, and that stops the run.
        """
        shapes: list[Shapes] = []
        for one in self._updaters:
            one.begin()
        with under(self.layout) if self._num_ranks > 1 else nullcontext():  # alone there is nothing to tell
            of_batches = [self._backward(batch, shapes) for batch in microbatches]
        own_loss, own_weight = (sum(column) for column in zip(*of_batches, strict=True))
        for one in self._updaters:
            one.reduce()
        samples = sum(map(len, microbatches))
        sums = [own_loss / self._alike, own_weight / self._alike, samples / self._alike]
        sums += [one.squared_norm() for one in self._updaters]
        if self._num_ranks > 1:
            everyone = torch.tensor(sums, dtype=torch.float64, device=self._device)
            torch.distributed.all_reduce(everyone)
            sums = everyone.tolist()
        loss, weight, samples, *squares = sums
        weight = max(weight, 1e-12)
        norm = math.sqrt(sum(squares)) / weight
        if math.isfinite(loss) and math.isfinite(norm):  # sums over all ranks, so each of them finds the same
            self.nonfinite.in_a_row = 0
        elif not self.nonfinite.may_update(own_loss, norm, microbatches):
            for one in self._updaters:
                one.discard()
            return StepResult(loss / weight, norm, 0.0, round(samples), shapes)
        clip_factor = 1.0 if self.clip_norm is None else min(1.0, self.clip_norm / (norm + 1e-6))
        for one in self._updaters:
            one.apply(weight, clip_factor)
        lr = float(self.weights.optimizer.param_groups[0]["lr"])
        return StepResult(loss / weight, norm, lr, round(samples), shapes)

    def _backward(self, batch: Batch, shapes: list[Shapes]) -> tuple[float, float]:
        """(sum of losses by their weights, sum of the weights); gradients are added to those that are there."""
        pieces = batch.cut(self.parts.plan.microbatches)
        if self.pipeline is None:

            def forwards() -> Forwards:
                for piece in pieces:
                    prepared, losses_B = self._forward(piece, training=True)
                    shapes.append(prepared.shapes())
                    yield (losses_B * prepared.weight_B).sum(), float(prepared.weight_B.sum())

            return self.backward(forwards(), len(pieces))
        from nemo_vfm.parallel.apply.pipeline_schedule import require_even

        if not isinstance(batch, PackedBatch):
            require_even(len(batch), self.parts.plan.microbatches)
        prepared = [self._prepare(piece, training=True) for piece in pieces]
        shapes.extend(one.shapes() for one in prepared)
        loss = self.pipeline.backward(prepared, self.parts.task.losses, self.parts.precision.autocast)
        return loss, sum(float(one.weight_B.sum()) for one in prepared)

    def _prepare(self, batch: Batch, *, training: bool) -> ModelInputs:
        return self.parts.task.prepare(batch.to(self._device), seed=self.parts.seed, training=training)

    def _forward(self, batch: Batch, *, training: bool) -> tuple[ModelInputs, Tensor]:
        prepared = self._prepare(batch, training=training)
        with self._autocast:
            output = self.model(**prepared.inputs)
        if isinstance(self.parts.task, ScoresSamples) and not (training and self.on_scores is None):
            prepared.tags.update(self.parts.task.scores(output.detach().float(), prepared))
            if training and self.on_scores is not None:
                self.on_scores(prepared)
        return prepared, self.parts.task.losses(output.float(), prepared)

    @torch.no_grad()
    def evaluate(self, batch: Batch) -> tuple[Tensor, ModelInputs]:
        """The loss of each sample, (B,), and what it was measured on; `tags` has its scores, too.

        The model is in evaluation mode meanwhile.
        """
        self.model.eval()
        prepared, losses_B = self._forward(batch, training=False)
        self.model.train()
        return losses_B, prepared

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """All that a checkpoint needs, by group; a tensor may be this rank's part (DTensor) of a larger one.

        Every rank must call it.
        """
        groups = {"model": learned_state(self.model), self.weights.group: self.weights.state()}
        return groups | {one.group: state for one in self.others if (state := one.state())}

    def load(self, groups: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Put weights and all updaters' state back, of which each rank reads its part; every rank must call it.

        Raises:
            CorruptCheckpoint: names or shapes are not this model's.
        """
        ranks = gather_group()
        fill(learned_state(self.model), groups["model"], ranks)
        for one in (self.weights, *self.others):
            one.load(groups.get(one.group, {}), ranks)
