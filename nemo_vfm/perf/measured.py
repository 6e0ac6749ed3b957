# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""A model, a plan and the shapes of its inputs in; the bytes that a real step had at its fullest moment out.

What the memory model says is compared with. On a CPU every allocation is seen by torch's profiler, on a GPU its
allocator keeps the most by itself.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from nemo_vfm.core import device as devices
from nemo_vfm.core.precision import Precision
from nemo_vfm.core.types import Batch, Factory, Prepared
from nemo_vfm.parallel.engine import Parts
from nemo_vfm.parallel.footprint import OptimizerFactory
from nemo_vfm.parallel.local import local
from nemo_vfm.parallel.plan import ParallelPlan
from nemo_vfm.parallel.products import native_products
from nemo_vfm.parallel.torch_engine import TorchEngine
from nemo_vfm.perf.stand_ins import Shapes

_ADAMW: OptimizerFactory = partial(torch.optim.AdamW, lr=1e-4)


@dataclass(frozen=True, slots=True)
class Measured:
    """Bytes on this rank.

    Args:
        standing: of weights, gradients and optimizer.
        most: at the fullest moment of a step, these included.
    """

    standing: int
    most: int


class MadeUp:
    """Inputs of random numbers for a model of latents or of text; its output is to be zero."""

    def prepare(self, batch: Batch, *, seed: int, training: bool) -> Prepared:
        """Copies, as a task that works on its batch has them."""
        if batch.tokens_BS is not None:
            tokens = {"tokens_BS": batch.tokens_BS.clone(), "labels_BS": batch.tokens_BS.clone()}
            return Prepared(tokens, {}, batch.weight_B)
        assert batch.latents_BCTHW is not None and batch.text_BLD is not None and batch.text_mask_BL is not None
        latents = {"latents_BCTHW": batch.latents_BCTHW.clone(), "noise_B": batch.weight_B.clone()}
        text = {"text_BLD": batch.text_BLD.clone(), "text_mask_BL": batch.text_mask_BL.clone()}
        return Prepared({**latents, **text, "fps_B": batch.fps_B.clone()}, {}, batch.weight_B)

    def losses(self, output: Tensor, prepared: Prepared) -> Tensor:
        """Of each sample."""
        return output.flatten(1).mean(1) if output.dim() == 2 else output.square().flatten(1).mean(1)


def made_up(shapes: Shapes, rows: int) -> Batch:
    """So many samples of these shapes."""
    numbers = torch.Generator().manual_seed(0)
    keys, ones = tuple(str(row) for row in range(rows)), torch.ones(rows)
    batch = Batch(0, keys, ("",) * rows, ones, 24 * ones)
    if "tokens_BS" in shapes:
        batch.tokens_BS = torch.randint(8, (rows, shapes["tokens_BS"][1]), generator=numbers)
        return batch
    batch.latents_BCTHW = torch.randn(rows, *shapes["latents_BCTHW"][1:], generator=numbers)
    batch.text_BLD = torch.randn(rows, *shapes["text_BLD"][1:], generator=numbers)
    batch.text_mask_BL = torch.ones(batch.text_BLD.shape[:2], dtype=torch.bool)
    return batch


def measured_step(
    rank: int, model: Factory[[], nn.Module], shapes: Shapes, plan: ParallelPlan, *, rows: int,
    optimizer: OptimizerFactory = _ADAMW, precision: Precision = Precision("fp32"),  # noqa: B008 (frozen)
    how: Mapping[str, object] | None = None,
) -> Measured:  # fmt: skip
    """The second step of a training, when the optimizer's state is there.

    Args:
        rank: of this process; torch.distributed is joined where there are several.
        model: builds it.
        shapes: of its inputs.
        plan: of all ranks.
        rows: samples of this rank in a step.
        optimizer: builds it.
        precision: of the arithmetic.
        how: other arguments of the engine.
    """
    engine = TorchEngine(**(how or {}))  # type: ignore[arg-type]
    engine.start(Parts(model, MadeUp(), optimizer, precision, 0, plan))
    batch = made_up(shapes, rows).to(devices.device())
    with native_products():
        engine.step([batch], 1.0)
        kept = [*engine.model.parameters(), *engine.model.buffers()]
        gradients = [parameter.grad for parameter in kept if parameter.grad is not None]
        state = engine.tensors()["optimizer"].values()
        standing = sum(local(tensor).nbytes for tensor in (*kept, *gradients, *state))
        return Measured(standing, standing + most_allocated(lambda: engine.step([batch], 1.0)))


def most_allocated(run: Callable[[], object]) -> int:
    """Bytes at the fullest moment of a call, over what there was before it; below zero never."""
    found = devices.most_memory(run)
    return _on_cpu(run) if found is None else found


def _on_cpu(run: Callable[[], object]) -> int:
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        run()
    assert seen.profiler is not None and seen.profiler.kineto_results is not None
    events = [event for event in seen.profiler.kineto_results.events() if event.name() == "[memory]"]
    now = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    return most
