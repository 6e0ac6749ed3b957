"""Measures the peak bytes of a real training step for a model, a plan and the shapes of its inputs.

The memory model is compared with it. On a CPU torch's profiler sees every allocation; on a GPU the allocator keeps the
peak itself.
"""

import gc
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile, record_function

from nemo_vfm.core import device as devices
from nemo_vfm.core.precision import Precision
from nemo_vfm.core.types.batch import Batch
from nemo_vfm.core.types.factory import Factory
from nemo_vfm.core.types.sample_batches import TokenBatch, VideoBatch
from nemo_vfm.core.types.task import ModelInputs
from nemo_vfm.parallel.apply.local_shard import local
from nemo_vfm.parallel.engine.step_runner import EngineInputs, StepRunner
from nemo_vfm.parallel.engine.torch_engine import TorchEngine
from nemo_vfm.parallel.layers.linear import native_products
from nemo_vfm.parallel.plan.plan import ParallelPlan
from nemo_vfm.parallel.plan.sharding_spec import OptimizerFactory
from nemo_vfm.perf.stand_ins import Shapes

_ADAMW: OptimizerFactory = partial(torch.optim.AdamW, lr=1e-4)


@dataclass(frozen=True, slots=True)
class Measured:
    """Bytes on this rank."""

    most: int  #: at the fullest moment of a step
    standing: int  #: of this, weights, gradients and optimizer; the gradients may be fewer then


@dataclass(frozen=True, slots=True)
class MadeUp:
    """Inputs of random numbers for a model of latents or of text; its output is to be zero."""

    weighted: bool = False  #: whether a language model is told what its tokens count

    def prepare(self, batch: Batch, *, seed: int, training: bool) -> ModelInputs:
        """Copies, as a task that works on its batch has them."""
        if isinstance(batch, TokenBatch):
            tokens = {"tokens_BS": batch.tokens_BS.clone(), "labels_BS": batch.tokens_BS.clone()}
            weights = {"loss_weight_B": batch.weight_B.clone()} if self.weighted else {}
            return ModelInputs(tokens | weights, {}, batch.weight_B)
        assert isinstance(batch, VideoBatch) and batch.latents_BCTHW is not None
        assert batch.text_BLD is not None and batch.text_mask_BL is not None
        latents = {"latents_BCTHW": batch.latents_BCTHW.clone(), "noise_B": batch.weight_B.clone()}
        text = {"text_BLD": batch.text_BLD.clone(), "text_mask_BL": batch.text_mask_BL.clone()}
        return ModelInputs({**latents, **text, "fps_B": batch.fps_B.clone()}, {}, batch.weight_B)

    def losses(self, output: Tensor, prepared: ModelInputs) -> Tensor:
        return output.flatten(1).mean(1) if output.dim() == 2 else output.square().flatten(1).mean(1)


def made_up(shapes: Shapes, rows: int) -> Batch:
    """So many samples of these shapes."""
    numbers = torch.Generator().manual_seed(0)
    keys, ones = tuple(str(row) for row in range(rows)), torch.ones(rows)
    if "tokens_BS" in shapes:
        tokens_BS = torch.randint(8, (rows, shapes["tokens_BS"][1]), generator=numbers)
        return TokenBatch(0, keys, ones, tokens_BS, tokens_BS)
    latents_BCTHW = torch.randn(rows, *shapes["latents_BCTHW"][1:], generator=numbers)
    text_BLD = torch.randn(rows, *shapes["text_BLD"][1:], generator=numbers)
    mask_BL = torch.ones(text_BLD.shape[:2], dtype=torch.bool)
    return VideoBatch(0, keys, ones, ("",) * rows, 24 * ones, text_BLD, mask_BL, latents_BCTHW=latents_BCTHW)


def measured_step(
    rank: int, model: Factory[[], nn.Module], shapes: Shapes, plan: ParallelPlan, *, rows: int,
    optimizer: OptimizerFactory = _ADAMW, precision: Precision = Precision("fp32"),
    how: Mapping[str, object] | None = None,
) -> Measured:  # fmt: skip
    """Two steps of a training, after a first one: the optimizer's state is there, and buffers that outlive a step are.

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
    batch, runners = made_up(shapes, rows).to(devices.device()), list[StepRunner]()

    def begin() -> None:
        runners.append(
            engine.start(EngineInputs(model, MadeUp("loss_weight_B" in shapes), optimizer, precision, 0, plan))
        )
        runners[0].step([batch])

    def go_on() -> None:
        for _ in range(2):
            runners[0].step([batch])

    with native_products():
        most = max_allocated(begin, go_on)
    (runner,) = runners
    kept = [*runner.model.parameters(), *runner.model.buffers(), *runner.weights.state().values()]
    gradients = [parameter.grad for parameter in runner.model.parameters() if parameter.grad is not None]
    return Measured(most, sum(local(tensor).nbytes for tensor in (*kept, *gradients)))


def max_allocated(begin: Callable[[], object], go_on: Callable[[], object]) -> int:
    """Bytes of all that both calls allocated and that is there at the fullest moment of the second."""
    if devices.device().type == "cuda":
        begin()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        go_on()
        return torch.cuda.max_memory_allocated()
    gc.collect()  # else an earlier engine's memory would be given back meanwhile, and be taken off
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        begin()
        with record_function(_SECOND):
            go_on()
    assert seen.profiler is not None and seen.profiler.kineto_results is not None
    events = seen.profiler.kineto_results.events()
    since = next(event.start_ns() for event in events if event.name() == _SECOND)
    now = most = 0
    for event in sorted((one for one in events if one.name() == "[memory]"), key=lambda one: one.start_ns()):
        now += event.nbytes()
        most = max(most, now) if event.start_ns() >= since else now
    return most


_SECOND = "what is measured"
