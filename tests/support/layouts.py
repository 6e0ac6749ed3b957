"""Trains a tiny DiT for a few steps under a plan: the losses and gradients on which all layouts must agree.

Every sample has its own latents, text, noise and weight, and every rank its own samples. A rank that forgets
another's part of a sum cannot be right by chance.
"""

from functools import cache, partial
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from nemo_vfm.core.fp8 import Fp8
from nemo_vfm.core.precision import Precision
from nemo_vfm.core.seed import generator
from nemo_vfm.core.types.sample_batches import VideoBatch
from nemo_vfm.core.types.task import ModelInputs
from nemo_vfm.models.dit import DiT
from nemo_vfm.models.st_dit import STDiT
from nemo_vfm.models.wan import Wan
from nemo_vfm.parallel.engine.step_runner import EngineInputs, StepRunner
from nemo_vfm.parallel.engine.torch_engine import TorchEngine
from nemo_vfm.parallel.plan.plan import ParallelPlan
from tests.support.ranks import on_ranks

SAMPLES = 8
WEIGHTS = (1.0, 2.0, 0.5, 1.0, 1.5, 0.0, 3.0, 1.0)


class Doubling:
    """Learns to double latents that are a function of the sample's key.

    Args:
        latents: their shape, without samples.
        frame_levels: a noise level for each latent frame, not one for each sample.
        others: shapes of further inputs, such as condition_BCTHW and image_BLD, without samples.
    """

    def __init__(
        self, latents: tuple[int, ...] = (4, 2, 4, 8), *, frame_levels: bool = False,
        **others: tuple[int, ...],
    ) -> None:  # fmt: skip
        self.latents, self.others = latents, others
        self.levels = latents[1:2] if frame_levels else ()

    def prepare(self, batch: VideoBatch, *, seed: int, training: bool) -> ModelInputs:
        """Inputs of a DiT with 4 channels and 16 wide text."""
        shapes = {"latents": self.latents, "text": (5, 16), "noise": self.levels, **self.others}
        latents, text, noise, *others = (
            torch.stack([torch.randn(shape, generator=generator(seed, name, key)) for key in batch.keys])
            for name, shape in shapes.items()
        )
        seen = torch.arange(5)[None] < torch.tensor([1 + len(key) % 4 for key in batch.keys])[:, None]
        inputs = {"latents_BCTHW": latents, "noise_B": noise, "text_BLD": text, "text_mask_BL": seen}
        inputs |= {"fps_B": batch.fps_B, **dict(zip(self.others, others, strict=True))}
        return ModelInputs(inputs, {"x": 2 * latents + 1}, batch.weight_B)

    def losses(self, output: torch.Tensor, prepared: ModelInputs) -> torch.Tensor:
        """Mean square error of each sample."""
        return (output - prepared.targets["x"]).square().flatten(1).mean(1)


class FromBatch:
    """Doubles the latents that a batch has, at noise levels that follow from them."""

    def prepare(self, batch: VideoBatch, *, seed: int, training: bool) -> ModelInputs:
        assert batch.latents_BCTHW is not None and batch.text_BLD is not None and batch.text_mask_BL is not None
        latents = batch.latents_BCTHW
        inputs = {"latents_BCTHW": latents, "noise_B": latents.flatten(1).mean(1), "fps_B": batch.fps_B}
        text = {"text_BLD": batch.text_BLD, "text_mask_BL": batch.text_mask_BL}
        return ModelInputs(inputs | text, {"x": 2 * latents + 1}, batch.weight_B)

    def losses(self, output: torch.Tensor, prepared: ModelInputs) -> torch.Tensor:
        return (output - prepared.targets["x"]).square().flatten(1).mean(1)


class _Awake:
    """Has no zeros at the start, so that every parameter has an influence and a gradient."""

    def initial_weight(self, name: str, shape: torch.Size, seed: int) -> torch.Tensor:
        return super().initial_weight(name, shape, seed) + moved(name, shape, seed)


class Awake(_Awake, DiT):
    """The model of most layouts."""


class AwakeST(_Awake, STDiT):
    """With attention over space and over time."""


class AwakeWan(_Awake, Wan):
    """With a Wan's blocks."""


def moved(name: str, shape: torch.Size, seed: int) -> torch.Tensor:
    return 0.1 * torch.randn(shape, generator=generator(seed, "awake", name))


tiny = partial(
    Awake, in_channels=4, text_dim=16, width=48, depth=4, heads=4, text_in_modulation=True, position_embedding=True
)
cosmos = partial(
    Awake, in_channels=4, text_dim=16, width=48, depth=4, heads=4, modulation_rank=6, learned_positions=(3, 3, 5),
    padding_mask=True, bias=False,
)  # fmt: skip
space_time = partial(
    AwakeST, in_channels=4, text_dim=16, width=48, depth=4, heads=4, modulation_rank=6, text_in_modulation=True,
    learned_positions=(4, 3, 5),
)  # fmt: skip
cosmos_25 = partial(
    cosmos, learned_positions=None, condition_channels=1, text_projection=8, text_as_given=True, gelu="exact",
    base_fps=None,
)  # fmt: skip
wan = partial(
    AwakeWan, in_channels=4, text_dim=16, width=48, depth=4, heads=4, mlp_hidden=80, condition_channels=3, image_dim=12
)
#: Given frames have levels of their own, and a channel that marks them.
GIVEN = Doubling(frame_levels=True, condition_BCTHW=(1, 2, 4, 8))
#: Given frames lie in channels, and their image beside the text.
IN_CHANNELS = Doubling(frame_levels=True, condition_BCTHW=(3, 2, 4, 8), image_BLD=(7, 12))
#: Frames and places that four context ranks, or two of them and two tensor ranks, can divide.
LONG = (4, 4, 4, 8)


def batch(index: int, first: int, last: int) -> VideoBatch:
    """Samples first..last of global batch `index`."""
    keys = tuple(f"{index}-{'x' * place}" for place in range(first, last))
    weight, fps = torch.tensor(WEIGHTS[first:last]), torch.arange(first, last) + 8.0
    return VideoBatch(index, keys, weight, ("",) * len(keys), fps)


def started(
    plan: ParallelPlan, model: Any = tiny, optimizer: Any = None, task: Doubling = Doubling(), fp8: Fp8 | None = None,
    precision: Any = "fp32", **how: Any,
) -> StepRunner:  # fmt: skip
    """An engine on this rank."""
    engine = TorchEngine(**how)
    engine = engine.start(
        EngineInputs(model, task, optimizer or partial(torch.optim.AdamW, lr=1e-3), Precision(precision, fp8), 3, plan)
    )
    return engine


def own(plan: ParallelPlan, rank: int, index: int) -> VideoBatch:
    """This rank's samples of a global batch."""
    each = SAMPLES // plan.data
    return batch(index, plan.data_rank(rank) * each, (plan.data_rank(rank) + 1) * each)


def steps(
    rank: int,
    degrees: dict[str, Any],
    how: dict[str, Any] | None = None,
    count: int = 2,
    model: Any = tiny,
    task: Doubling = Doubling(),
) -> dict[str, Any]:
    """What this rank sees of a few steps, of the last one's gradients and of a validation."""
    plan = ParallelPlan(**degrees)
    engine = started(plan, model, task=task, **(how or {}))
    results = [engine.step([own(plan, rank, index)]) for index in range(count)]
    losses, _ = engine.evaluate(batch(99, 0, SAMPLES))
    return {
        "loss": [result.loss for result in results],
        "norm": [result.grad_norm for result in results],
        "samples": [result.num_samples for result in results],
        "validation": losses.tolist(),
        "gradients": [float(whole(one.grad).norm()) for one in engine.model.parameters() if one.requires_grad],
    }


@cache
def one_device(model: Any = tiny, task: Doubling = Doubling(), count: int = 2) -> dict[str, Any]:
    """What one device sees of these steps, asked for once."""
    return dict(on_ranks(1, steps, {}, None, count, model, task)[0])


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of which each rank may have a part."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
