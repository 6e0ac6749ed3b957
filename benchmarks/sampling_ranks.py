"""Times a step of sampling on one rank and on two, for each way of splitting, and compares what they draw.

    python benchmarks/sampling_ranks.py [--quick] [--json FILE]

A random DiT draws two videos with guidance in fp32 on the CPU, one thread a rank, over gloo. Ways take turns in each
round, and the figure is the median of the rounds. Where ranks have prompts of their own (shard, replicate) each draws
both videos, so a step there is worth two. The difference is the largest of the latents over their deviation. It fails
above 1e-5.
"""

import argparse
import json
import os
import sys
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # the checkout's own helpers, wherever this is called

from nemo_vfm.core.seed import generator  # noqa: E402
from nemo_vfm.diffusion.guidance import ClassifierFree  # noqa: E402
from nemo_vfm.diffusion.objective import FlowMatching  # noqa: E402
from nemo_vfm.diffusion.sampler import Euler  # noqa: E402
from nemo_vfm.diffusion.video_pipeline import TextToVideo  # noqa: E402
from nemo_vfm.models.codec import WaveletCodec  # noqa: E402
from nemo_vfm.models.text_encoder import HashedNgrams  # noqa: E402
from nemo_vfm.parallel.engine.inference_model import join_sampling  # noqa: E402
from nemo_vfm.parallel.plan.sampling_plan import SamplingPlan  # noqa: E402
from nemo_vfm.synth.sample_videos import SamplingModel  # noqa: E402
from tests.support.layouts import tiny  # noqa: E402
from tests.support.ranks import on_ranks  # noqa: E402

BOUND, STEPS = 1e-5, 3
WAYS: dict[str, dict[str, Any]] = {
    "one rank": {}, "guidance": {"guidance": 2}, "guidance, whole weights": {"guidance": 2, "weights": "whole"},
    "context, ring": {"context": 2}, "context, ulysses": {"context": 2, "attention": "ulysses"},
    "context, whole weights": {"context": 2, "weights": "whole"}, "tensor": {"tensor": 2},
    "tensor, sequence": {"tensor": 2, "sequence": True}, "shard": {"shard": 2}, "replicate": {"replicate": 2},
}  # fmt: skip


def model(*, width: int, depth: int) -> Any:
    """A DiT without zeros."""
    return tiny(width=width, depth=depth, heads=width // 64)


@torch.no_grad()
def drawn(rank: int, degrees: dict[str, Any], width: int, depth: int, size: tuple[int, ...]) -> tuple[float, Tensor]:
    """Seconds of a step and the latents, on this rank."""
    torch.set_num_threads(1)
    ranks = join_sampling(SamplingPlan(**degrees))
    network = SamplingModel(lambda: model(width=width, depth=depth), None, "ema", {}).build(1, ranks, offload=False)
    noise = torch.stack([torch.randn(size, generator=generator(2, "noise", n)) for n in range(2)])
    latents = noise
    for steps in (1, STEPS):  # the first only warms up
        pipeline = TextToVideo(
            codec=WaveletCodec(levels_space=2, levels_time=1), text_encoder=HashedNgrams(dim=16, max_tokens=5),
            objective=FlowMatching(), sampler=Euler(steps=steps), guidance=ClassifierFree(scale=3.0),
        )  # fmt: skip
        ranks.everyone_says("begins")
        began = perf_counter()
        latents = pipeline.latents(network, ["a red square", "a blue circle"], noise, fps=8.0, ranks=ranks)
    return (perf_counter() - began) / STEPS, latents


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small network and one round")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    width, depth, size, rounds = (128, 3, (4, 2, 16, 16), 1) if given.quick else (384, 8, (4, 4, 32, 32), 7)
    print(f"torch {torch.__version__}, DiT {width} wide, {depth} blocks, latents {size}, fp32, one thread a rank")
    seconds: dict[str, list[float]] = {name: [] for name in WAYS}
    worst = dict.fromkeys(WAYS, 0.0)
    for _ in range(rounds):
        expected = torch.zeros(0)
        for name, degrees in WAYS.items():
            found = on_ranks(SamplingPlan(**degrees).world, drawn, degrees, width, depth, size)
            expected = found[0][1] if name == "one rank" else expected
            seconds[name].append(max(one for one, _ in found))
            apart = (float((latents - expected).abs().max() / expected.std()) for _, latents in found)
            worst[name] = max(worst[name], *apart)
    print("| way | s a step | of one rank | difference |\n|---|---|---|---|")
    told: dict[str, float] = {"max_difference": max(worst.values())}
    for name, times in seconds.items():
        told[f"{name}, s a step"] = median(times)
        share = median(times) / median(seconds["one rank"])
        print(
            f"| {name} | {median(times):.3f} ({min(times):.3f} to {max(times):.3f}) | {share:.2f} | {worst[name]:.1e} |"
        )
    if given.json:
        given.json.write_text(json.dumps(told))
    return int(told["max_difference"] > BOUND)


if __name__ == "__main__":
    raise SystemExit(main())
