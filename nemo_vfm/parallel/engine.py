# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""A model, a task and micro-batches in; one optimizer step out. Schedule, reduction, clipping and update live here.

`Engine` is the seam: `SingleDevice` runs on one device; engines for many keep the same methods and numbers.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from nemo_vfm.core.device import device
from nemo_vfm.core.errors import CorruptCheckpoint, UserError
from nemo_vfm.core.precision import Precision
from nemo_vfm.core.seed import derive
from nemo_vfm.core.types import Batch, DevicePlan, Factory, Prepared, Task
from nemo_vfm.parallel.footprint import OptimizerFactory, state_of
from nemo_vfm.parallel.footprint import Params as Params  # part of what an engine is given

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one optimizer step did.

    Args:
        loss: mean over the samples of the global batch, by their weights.
        grad_norm: global L2 norm before clipping.
        lr: learning rate of the first parameter group.
        num_samples: samples of the global batch.
        shapes: of the model's inputs, one mapping a micro-batch, for counting arithmetic.
    """

    loss: float
    grad_norm: float
    lr: float
    num_samples: int
    shapes: list[Shapes] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Parts:
    """What an engine is given to start from."""

    model: Factory[[], nn.Module]
    task: Task
    optimizer: OptimizerFactory
    precision: Precision
    seed: int


@runtime_checkable
class Engine(Protocol):
    """Runs optimizer steps, on one device or on many."""

    def start(self, parts: Parts) -> nn.Module:
        """Build model and optimizer on the device(s); returns the model."""
        ...

    def step(self, microbatches: Sequence[Batch], lr_factor: float) -> StepResult:
        """One optimizer step over a global batch, with every learning rate times `lr_factor`."""
        ...

    def evaluate(self, batch: Batch) -> tuple[Tensor, Prepared]:
        """The loss of each sample, (B,), without gradients, and what it was measured on."""
        ...

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """All that a checkpoint needs, by group: model and optimizer."""
        ...

    def plan_for(self, num_gpus: int, model: Factory[[], nn.Module], optimizer: OptimizerFactory) -> DevicePlan:
        """What this engine would do with so many GPUs; asked before `start`, on any machine."""
        ...

    def load(self, groups: Mapping[str, Mapping[str, Tensor]]) -> None:
        """The inverse of `tensors`."""
        ...


class SingleDevice:
    """The engine for one device.

    Args:
        clip_norm: the gradient's global L2 norm is scaled down to this; None leaves it.
    """

    def __init__(self, *, clip_norm: float | None = 1.0) -> None:
        if clip_norm is not None and clip_norm <= 0:
            raise ValueError(f"clip_norm must be above zero, got {clip_norm}; write null to switch clipping off")
        self.clip_norm = clip_norm

    def plan_for(self, num_gpus: int, model: Factory[[], nn.Module], optimizer: OptimizerFactory) -> DevicePlan:
        """One GPU works, whatever their number."""
        idle = num_gpus - 1
        note = f"this recipe trains on one device (SingleDevice), so {idle} of {num_gpus} GPUs would stand idle"
        count, state_bytes = state_of(model, optimizer)
        return DevicePlan(1, count, state_bytes, (note,) if idle else ())

    def start(self, parts: Parts) -> nn.Module:
        """Build the model from the seed and the optimizer over its parameters."""
        self.parts = parts
        self.model = build_model(parts.model, parts.seed).to(device()).train()
        self.optimizer = parts.optimizer([p for p in self.model.parameters() if p.requires_grad])
        self._base_lrs = [float(group["lr"]) for group in self.optimizer.param_groups]
        return self.model

    def step(self, microbatches: Sequence[Batch], lr_factor: float) -> StepResult:
        """Forward and backward over the micro-batches, clip, update.

        Raises:
            UserError: the loss is not finite.
        """
        total_weight = float(sum(float(batch.weight_B.sum()) for batch in microbatches))
        self.optimizer.zero_grad(set_to_none=True)
        shapes: list[Shapes] = []
        loss = sum(self._backward(batch, total_weight, shapes) for batch in microbatches)
        grad_norm = self._clip()
        if not math.isfinite(loss) or not math.isfinite(grad_norm):
            keys = ", ".join(key for batch in microbatches for key in batch.keys[:4])
            raise UserError(
                f"The loss ({loss}) or its gradient norm ({grad_norm}) is not finite at batch {microbatches[0].index} "
                f"(samples {keys}, ...). Lower the learning rate, or look for damaged samples. No weights were changed."
            )
        for group, base in zip(self.optimizer.param_groups, self._base_lrs, strict=True):
            group["lr"] = base * lr_factor
        self.optimizer.step()
        lr = float(self.optimizer.param_groups[0]["lr"])
        return StepResult(loss, grad_norm, lr, sum(len(batch) for batch in microbatches), shapes)

    def _backward(self, batch: Batch, total_weight: float, shapes: list[Shapes]) -> float:
        prepared, losses_B = self._forward(batch, training=True)
        shapes.append({name: tuple(tensor.shape) for name, tensor in prepared.inputs.items()})
        # The mean is taken over the global batch, so a batch cut otherwise gives the same gradient.
        loss = (losses_B * prepared.weight_B).sum() / max(total_weight, 1e-12)
        loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.detach())

    def _forward(self, batch: Batch, *, training: bool) -> tuple[Prepared, Tensor]:
        prepared = self.parts.task.prepare(batch.to(device()), seed=self.parts.seed, training=training)
        with self.parts.precision.autocast():
            output = self.model(**prepared.inputs)
        return prepared, self.parts.task.losses(output.float(), prepared)

    def _clip(self) -> float:
        limit = math.inf if self.clip_norm is None else self.clip_norm
        return float(nn.utils.clip_grad_norm_(self.model.parameters(), limit))

    @torch.no_grad()
    def evaluate(self, batch: Batch) -> tuple[Tensor, Prepared]:
        """The loss of each sample with the model in evaluation mode."""
        self.model.eval()
        prepared, losses_B = self._forward(batch, training=False)
        self.model.train()
        return losses_B, prepared

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """The model's state and the optimizer's, the latter as `parameter name/key`."""
        names = {id(parameter): name for name, parameter in self.model.named_parameters()}
        optimizer = {
            f"{names[id(parameter)]}/{key}": torch.as_tensor(value)
            for parameter, state in self.optimizer.state.items()
            for key, value in state.items()
        }
        return {"model": dict(self.model.state_dict()), "optimizer": optimizer}

    def load(self, groups: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Put weights and optimizer state back.

        Raises:
            CorruptCheckpoint: names or shapes are not this model's.
        """
        load_weights_into(self.model, groups["model"])
        parameters = dict(self.model.named_parameters())
        self.optimizer.state.clear()
        for name, value in groups["optimizer"].items():
            parameter, _, key = name.rpartition("/")
            if parameter not in parameters:
                raise CorruptCheckpoint(
                    f"The checkpoint has optimizer state for {parameter!r}; this model has no such parameter."
                )
            # AdamW keeps its step count on the CPU, the moments beside the parameter.
            kept = value.clone() if value.dim() == 0 else value.to(parameters[parameter].device)
            self.optimizer.state[parameters[parameter]][key] = kept


def build_model(factory: Factory[[], nn.Module], seed: int) -> nn.Module:
    """A model whose initial weights are a function of `seed` alone, whatever was drawn before."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(seed, "initial weights"))
        return factory()


def load_weights_into(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Strict loading, with the differences as text.

    Raises:
        CorruptCheckpoint: names or shapes differ.
    """
    own = model.state_dict()
    missing, surplus = sorted(own.keys() - weights.keys()), sorted(weights.keys() - own.keys())
    common = sorted(own.keys() & weights.keys())
    shapes = [
        f"{n} {tuple(weights[n].shape)}, here {tuple(own[n].shape)}" for n in common if weights[n].shape != own[n].shape
    ]
    kinds = {"missing": missing, "unknown": surplus, "other shape": shapes}
    differences = [f"{kind}: {_some(names)}" for kind, names in kinds.items() if names]
    if differences:
        raise CorruptCheckpoint(
            f"The checkpoint is of another model ({'; '.join(differences)}). Use the recipe that trained it."
        )
    model.load_state_dict(dict(weights))


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
