"""Computes one step's loss and gradients on two packs of images and videos of six shapes, packed or one by one."""

from dataclasses import replace
from functools import partial
from typing import Any

import torch

from nemo_vfm.core.precision import Precision
from nemo_vfm.core.types.sample_batches import PackedBatch, VideoBatch
from nemo_vfm.data.batching.packing import side_by_side
from nemo_vfm.diffusion.denoising_task import Denoise
from nemo_vfm.diffusion.objective import EDM
from nemo_vfm.diffusion.uncertainty_weighting import UncertaintyWeighted
from nemo_vfm.models.codec import WaveletCodec
from nemo_vfm.models.text_encoder import HashedNgrams
from nemo_vfm.parallel.engine.step_runner import EngineInputs
from nemo_vfm.parallel.engine.torch_engine import TorchEngine
from nemo_vfm.parallel.plan.plan import ParallelPlan
from tests.support.layouts import Awake, whole

PACKS = [[(1, 4, 8), (3, 4, 4), (2, 6, 4)], [(1, 2, 2), (2, 4, 6), (1, 4, 4), (1, 2, 4), (1, 2, 4)]]  # 32 and 21 tokens
WEIGHTS = (1.0, 2.0, 0.5, 1.0, 0.0, 3.0, 1.5, 0.25)
TEXT = HashedNgrams(dim=16, max_tokens=5)
PLAIN: dict[str, Any] = {"text_in_modulation": True, "position_embedding": True}
COSMOS: dict[str, Any] = {"modulation_rank": 8, "learned_positions": (3, 4, 4), "padding_mask": True}
UNSURE: dict[str, Any] = {**COSMOS, "uncertainty": True}
tiny = partial(Awake, in_channels=4, text_dim=16, width=48, depth=2, heads=4)


def task(**changes: Any) -> Denoise:
    """Drops some texts."""
    codec = WaveletCodec(levels_space=1, levels_time=1)
    return Denoise(**{"objective": EDM(), "codec": codec, "text_encoder": TEXT, "text_dropout": 0.3, **changes})


def samples(pack: int) -> list[VideoBatch]:
    """A pack's samples, each a batch of its own; no two are alike in anything."""
    found, first = [], sum(map(len, PACKS[:pack]))
    for place, size in enumerate(PACKS[pack], first):
        latents = torch.randn(1, 4, *size, generator=torch.Generator().manual_seed(place))
        weight, fps = torch.tensor([WEIGHTS[place]]), torch.tensor([8.0 + 3 * place])
        words = " ".join(["a", "red", "square", "moves"][: 1 + place % 4])
        found.append(VideoBatch(7, (f"key {place}",), weight, (f"{words} {place}",), fps, latents_BCTHW=latents))
    return found


def batch(packs: list[int], *, packed: bool = True) -> PackedBatch:
    """Some packs as one batch; one by one in as many pieces as the larger pack has samples, for each of them."""
    together = side_by_side(7, [sample for pack in packs for sample in samples(pack)])
    return together if packed else replace(together, apart=5 * len(packs))


def step(
    rank: int, degrees: dict[str, Any], model: dict[str, Any] | None = None, packed: bool = True, mean: str = "sample"
) -> dict[str, Any]:
    """The loss, the norm and every parameter's gradient of one step on both packs, one for each data rank if two."""
    plan = ParallelPlan(**degrees)
    mine = [0, 1] if plan.data == 1 else [plan.data_rank(rank)]
    engine = TorchEngine(clip_norm=None)
    optimizer = partial(torch.optim.AdamW, lr=1e-3)
    made = partial(tiny, **(model := PLAIN if model is None else model))
    learned = task(mean=mean, objective=UncertaintyWeighted(objective=EDM()) if "uncertainty" in model else EDM())
    engine = engine.start(EngineInputs(made, learned, optimizer, Precision("fp32"), 3, plan))
    result = engine.step([batch(mine, packed=packed)])
    gradients = {name: whole(one.grad).clone() for name, one in engine.model.named_parameters() if one.grad is not None}
    return {"loss": result.loss, "norm": result.grad_norm, "samples": result.num_samples, "gradients": gradients}


def furthest(found: dict[str, Any], expected: dict[str, Any]) -> float:
    """The largest relative difference: of the loss, the norm, and of each parameter's gradient as a whole."""
    assert found["samples"] == expected["samples"] and found["gradients"].keys() == expected["gradients"].keys()
    apart = [abs(found[name] / expected[name] - 1) for name in ("loss", "norm")]
    pairs = ((one, found["gradients"][name]) for name, one in expected["gradients"].items())
    return max(*apart, *(float((other - one).norm() / one.norm()) for one, other in pairs))
