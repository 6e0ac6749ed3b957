"""Samples latents from tiny random video models under a sampling plan; all plans must agree."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nemo_vfm.core.seed import generator
from nemo_vfm.diffusion.conditioning.in_channels import GivenInChannels
from nemo_vfm.diffusion.conditioning.in_time import GivenInTime
from nemo_vfm.diffusion.frame_conditioning import FrameConditioning, GivenFrames
from nemo_vfm.diffusion.guidance import ClassifierFree
from nemo_vfm.diffusion.noise_schedule import UniPCFlowSigmas
from nemo_vfm.diffusion.objective import FlowMatching
from nemo_vfm.diffusion.step_cache import FirstBlockCache
from nemo_vfm.diffusion.unipc import UniPC
from nemo_vfm.diffusion.video_pipeline import TextToVideo
from nemo_vfm.models.adapters.adapter_file import write_adapter
from nemo_vfm.models.adapters.load_adapters import AdapterFile
from nemo_vfm.models.adapters.low_rank_adapter import TRAINED, AdaptedModel, AdapterTarget, LowRankAdapter
from nemo_vfm.models.adapters.matrices import extract_adapter
from nemo_vfm.models.codec import WaveletCodec
from nemo_vfm.models.noise_experts import NoiseExperts
from nemo_vfm.models.text_encoder import HashedNgrams
from nemo_vfm.parallel.engine.inference_model import join_sampling
from nemo_vfm.parallel.plan.adapter_split import is_adapter
from nemo_vfm.parallel.plan.sampling_plan import SamplingPlan
from nemo_vfm.synth.sample_videos import SamplingModel
from tests.support.layouts import cosmos, cosmos_25, tiny, wan

PROMPTS, SIZE, STEPS = ["a red square", "two blue circles moving"], (4, 2, 4, 8), 6


def experts() -> NoiseExperts:
    """Two experts with the boundary at 0.5."""
    return NoiseExperts(high=tiny(), low=tiny(depth=3), boundary=0.5)


#: The network and how it receives given frames.
FAMILIES: dict[str, tuple[Any, FrameConditioning | None]] = {
    "dit": (tiny, None), "cosmos 1": (cosmos, None), "cosmos 2.5": (cosmos_25, GivenInTime(sigma=0.01, level=1e-4)),
    "wan": (wan, GivenInChannels()), "experts": (experts, None),
}  # fmt: skip


def pipeline(family: str, cache: FirstBlockCache | None = None, guidance: Any = None) -> TextToVideo:
    """A pipeline whose guidance is active at medium noise levels."""
    return TextToVideo(
        codec=WaveletCodec(levels_space=2, levels_time=1), text_encoder=HashedNgrams(dim=16, max_tokens=5),
        objective=FlowMatching(), sampler=UniPC(steps=STEPS), noise_schedule=UniPCFlowSigmas(shift=3.0),
        guidance=guidance or ClassifierFree(scale=3.0, above_sigma=0.3, below_sigma=0.95),
        frame_conditioning=FAMILIES[family][1], step_cache=cache,
    )  # fmt: skip


def noise(prompts: Sequence[str] = PROMPTS) -> Tensor:
    return torch.stack([torch.randn(SIZE, generator=generator(1, "noise", text)) for text in prompts])


def given(family: str, count: int) -> GivenFrames | None:
    """Make a given first latent frame for each video, with its conditioning."""
    if FAMILIES[family][1] is None:
        return None
    draw = generator(2, "given")
    mask = torch.tensor([[True, False]]).repeat(count, 1)
    known = GivenFrames(mask, torch.randn(count, *SIZE, generator=draw), torch.randn(count, *SIZE, generator=draw),
                        torch.full((count,), 0.01))  # fmt: skip
    if family != "wan":
        return known
    condition = torch.randn(count, 3, *SIZE[1:], generator=draw)
    return replace(known, condition_BKTHW=condition, image_BLD=torch.randn(count, 7, 12, generator=draw))


def adapter(family: str, method: Any, folder: Path) -> Path:
    """Write a nonzero adapter."""
    targets = {"attention": AdapterTarget(modules="blocks.*.self_attention.*", rank=3, alpha=6.0),
               "mlp": AdapterTarget(modules="blocks.*.mlp.*", rank=4, alpha=8.0)}  # fmt: skip
    torch.manual_seed(7)
    model = AdaptedModel(FAMILIES[family][0], LowRankAdapter(targets=targets, method=method))()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if is_adapter(name):
                parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator(7, name)))
    return write_adapter(folder, "ours", extract_adapter(model, TRAINED, our_names=True), model)


@torch.no_grad()
def sampled_latents(
    rank: int, degrees: dict[str, Any], cases: Sequence[str], adapters: Mapping[str, Path] = {},
    threshold: float | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Sample each family's latents on this rank; also return the numbers of skipped and all blocks."""
    ranks = join_sampling(SamplingPlan(**degrees))
    found = {}
    for family in cases:
        files = {"style": AdapterFile(path=adapters[family])} if family in adapters else {}
        model = SamplingModel(FAMILIES[family][0], None, "ema", files).build(3, ranks, offload=False)
        cache = None if threshold is None else FirstBlockCache(threshold=threshold)
        skipped = RecordingCache(cache) if cache is not None else None
        own = pipeline(family, skipped)
        found[family] = own.latents(model, PROMPTS, noise(), fps=8.0, given=given(family, len(PROMPTS)), ranks=ranks)
        found[f"{family} skipped"] = None if skipped is None else skipped.counts()
    return found


class RecordingCache(FirstBlockCache):
    """Records the caches that it creates."""

    def __init__(self, cache: FirstBlockCache) -> None:
        super().__init__(threshold=cache.threshold)
        self.created: list[Any] = []

    def begin(self, model: Any) -> Any:
        self.created.append(super().begin(model))
        return self.created[-1]

    def counts(self) -> tuple[int, int]:
        """Return the numbers of skipped and of all blocks."""
        every = [one.counts() for one in self.created]
        return sum(skipped for _, skipped in every), sum(blocks for blocks, _ in every)


def difference(found: Tensor, expected: Tensor) -> float:
    """Return the largest difference divided by the standard deviation."""
    return float((found - expected).abs().max() / expected.std())
