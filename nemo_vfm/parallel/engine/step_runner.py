"""Runs the optimizer steps of a model that an engine has built, with the same sums on any layout.

Every rank adds up weight times loss over its samples and tokens, unscaled. Then one all-reduce of the sums and of each
updater's squared norm tells every rank what to divide by. So nothing depends on how samples, tokens or layers are
spread.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor, nn

from nemo_vfm.core.device import device
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.precision import Precision
from nemo_vfm.core.types.batch import Batch
from nemo_vfm.core.types.factory import Factory
from nemo_vfm.core.types.sample_batches import PackedBatch
from nemo_vfm.core.types.task import ModelInputs, ScoresSamples, TakesTurns, Task
from nemo_vfm.parallel.apply.frozen_weights import learned_state
from nemo_vfm.parallel.checkpoint.checkpoint_ranks import gather_group
from nemo_vfm.parallel.checkpoint.checkpoint_reader import fill
from nemo_vfm.parallel.engine.nonfinite_guard import NonFinite
from nemo_vfm.parallel.layers.token_layout import TokenLayout, under
from nemo_vfm.parallel.plan.plan import ParallelPlan
from nemo_vfm.parallel.plan.sharding_spec import Optimizers
from nemo_vfm.parallel.ranks.gather import Gather

if TYPE_CHECKING:
    from nemo_vfm.parallel.apply.pipeline_schedule import RankPipeline

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one optimizer step did."""

    loss: float  #: mean over the samples of the global batch, by their weights; of turns their sum
    grad_norm: float  #: global L2 norm before clipping, of all turns together
    lr: float  #: learning rate of the first parameter group; 0 where the step was skipped, since it is not finite
    num_samples: int  #: samples of the global batch
    #: of the model's inputs, one mapping a micro-batch, for counting arithmetic
    shapes: list[Shapes] = field(default_factory=list)
    #: `loss_NAME` and `grad_norm_NAME` of each turn up to one that is not finite
    turns: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EngineInputs:
    """What an engine is given to start from."""

    model: Factory[[], nn.Module]
    task: Task
    optimizer: Optimizers
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


class TurnUpdater(DenseUpdater, Protocol):
    """Updates one child of a model in its turn of each step."""

    def snapshot(self) -> Callable[[], None]:
        """Copy the weights and the optimizer's state; what is returned puts them back, bit for bit."""
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
    weights: DenseUpdater  #: updates the parameters; those of the first turn where there are turns
    others: Sequence[Updater]  #: update everything else
    pipeline: "RankPipeline | None" = None  #: the stages of this rank, where blocks are cut
    #: runs forward and backward of the microbatches of a rank that has all blocks
    backward: Callable[[Forwards, int], tuple[float, float]] = backward_each
    clip_norm: float | None = None  #: the gradient's global L2 norm is scaled down to this; None leaves it
    #: what becomes of a step whose loss or gradient is not a number
    nonfinite: NonFinite = field(default_factory=NonFinite)
    #: Called with each micro-batch that is trained on, once `tags` has its scores; None computes none.
    on_scores: Callable[[ModelInputs], None] | None = None
    #: of models whose children are updated in turns, by the child's name; empty where one optimizer updates all at once
    turns: Mapping[str, TurnUpdater] = field(default_factory=dict)

    def __post_init__(self) -> None:
        #: all that update parameters
        self.dense: list[DenseUpdater] = [*self.turns.values()] or [self.weights]
        self._updaters: list[Updater] = [*self.others, *self.dense]
        self._turns: Mapping[str, Sequence[Updater]] = {turn: [one] for turn, one in self.turns.items()}
        self._turns = self._turns or {"": self._updaters}
        self._learning = {
            turn: [p for name, p in self.model.named_parameters() if name.startswith(f"{turn}.") and p.requires_grad]
            for turn in self.turns
        }
        self._num_ranks = self.parts.plan.world
        self._alike = self._num_ranks / self.parts.plan.data  # ranks that count the same samples
        self._device, self._autocast = device(), self.parts.precision.autocast()

    def set_lr(self, lr_factor: float) -> None:
        """Set all learning rates of the coming steps to `lr_factor` times the recipe's."""
        for one in self._updaters:
            one.set_lr(lr_factor)

    def step(self, microbatches: Sequence[Batch]) -> StepResult:
        """One optimizer step over a global batch, of which these are this rank's; `parallel.microbatches` cuts each.

        With several optimizers it is one turn of each, and the next turn sees the new weights. Where a turn is refused
        the earlier ones are taken back: weights, statistics and optimizers are as before the step.

        UserError if the loss is not finite, on any rank, and that stops the run.
        """
        shapes: list[Shapes] = []
        losses, norms, samples, lr = list[float](), list[float](), 0.0, 0.0
        buffers = [(buffer, buffer.clone()) for buffer in self.model.buffers()] if self.turns else []
        snapshots = list[Callable[[], None]]()
        for turn, updaters in self._turns.items():
            for name, parameters in self._learning.items():
                for parameter in parameters:
                    parameter.requires_grad_(name == turn)
            own_loss, loss, weight, samples, norm = self._sum_gradients(turn, microbatches, [] if losses else shapes)
            losses.append(loss / weight)
            norms.append(norm)
            if not (math.isfinite(loss) and math.isfinite(norm)):  # of all ranks, so each of them finds the same
                for buffer, before in buffers:
                    buffer.copy_(before)
                for put_back in snapshots:
                    put_back()
                if not self.nonfinite.may_update(own_loss, norm, microbatches):
                    for one in self._updaters:
                        one.discard()
                    break
            if len(losses) < len(self.turns):  # after the last there is none that could be refused
                snapshots.append(self.turns[turn].snapshot())
            clip_factor = 1.0 if self.clip_norm is None else min(1.0, self.clip_norm / (norm + 1e-6))
            for one in updaters:
                one.apply(weight, clip_factor)
        else:
            self.nonfinite.in_a_row, lr = 0, float(self.weights.optimizer.param_groups[0]["lr"])
        for parameter in itertools.chain.from_iterable(self._learning.values()):
            parameter.requires_grad_()
        measured = dict(zip(self.turns, zip(losses, norms, strict=True), strict=False))
        figures = {f"loss_{turn}": loss for turn, (loss, _) in measured.items()}
        figures |= {f"grad_norm_{turn}": norm for turn, (_, norm) in measured.items()}
        return StepResult(sum(losses[1:], losses[0]), math.hypot(*norms), lr, round(samples), shapes, figures)

    def _sum_gradients(
        self, turn: str, microbatches: Sequence[Batch], shapes: list[Shapes]
    ) -> tuple[float, float, float, float, float]:
        """(this rank's loss; loss, weight and samples of all ranks; gradient norm), sums but for the norm, of a turn.

        The gradients are summed over ranks, and not divided yet.
        """
        updaters = self._turns[turn]
        for one in updaters:
            one.begin()
        with under(self.layout) if self._num_ranks > 1 else nullcontext():  # alone there is nothing to tell
            of_batches = [self._backward(batch, shapes, turn) for batch in microbatches]
        own_loss, own_weight = (sum(column) for column in zip(*of_batches, strict=True))
        for one in updaters:
            one.reduce()
        samples = sum(map(len, microbatches))
        sums = [own_loss / self._alike, own_weight / self._alike, samples / self._alike]
        sums += [one.squared_norm() for one in updaters]
        if self._num_ranks > 1:
            everyone = torch.tensor(sums, dtype=torch.float64, device=self._device)
            torch.distributed.all_reduce(everyone)
            sums = everyone.tolist()
        loss, weight, samples, *squares = sums
        weight = max(weight, 1e-12)
        return own_loss, loss, weight, samples, math.sqrt(sum(squares)) / weight

    def _backward(self, batch: Batch, shapes: list[Shapes], turn: str) -> tuple[float, float]:
        """(sum of losses by their weights, sum of the weights); gradients are added to those that are there."""
        pieces = batch.cut(self.parts.plan.microbatches)
        if self.pipeline is None:

            def forwards() -> Forwards:
                for piece in pieces:
                    prepared, losses_B = self._forward(piece, training=True, turn=turn)
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

    def _forward(self, batch: Batch, *, training: bool, turn: str = "") -> tuple[ModelInputs, Tensor]:
        prepared = self._prepare(batch, training=training)
        with self._autocast:
            output = self.model(**prepared.inputs)
        task, first = self.parts.task, next(iter(self._turns))  # of several turns one counts a sample's scores
        if isinstance(task, ScoresSamples) and not (training and (self.on_scores is None or turn != first)):
            prepared.tags.update(task.scores(output.detach().float(), prepared))
            if training and self.on_scores is not None:
                self.on_scores(prepared)
        if not turn:
            return prepared, task.losses(output.float(), prepared)
        assert isinstance(task, TakesTurns)
        losses_B = task.turn_losses(turn, output.float(), prepared)
        if not losses_B.requires_grad:
            raise UserError(
                f"the losses of turn {turn!r} do not depend on the parameters of model.{turn}, so there is nothing to "
                f"update; compute them in {type(task).__name__}.turn_losses from what model.{turn} gave, not detached"
            )
        return prepared, losses_B

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
        groups = {"model": learned_state(self.model)} | {one.group: one.state() for one in self.dense}
        return groups | {one.group: state for one in self.others if (state := one.state())}

    def load(self, groups: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Put weights and all updaters' state back, of which each rank reads its part; every rank must call it.

        Raises:
            CorruptCheckpoint: names or shapes are not this model's.
        """
        ranks = gather_group()
        fill(learned_state(self.model), groups["model"], ranks)
        for one in (*self.dense, *self.others):
            one.load(groups.get(one.group, {}), ranks)
