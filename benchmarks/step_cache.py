"""Measures what the step cache leaves out, the error that it makes and the time that it saves, by threshold.

    python benchmarks/step_cache.py CHECKPOINT [--quick] [--json FILE]

CHECKPOINT is that of a training of the quickstart, such as runs/quickstart/train/checkpoints. The recipe
`diffusion/sample.yaml` draws its prompts with each threshold and without a cache from the same noise. Latents: root
mean square of the difference over the deviation. PSNR: of pixels, of the worst video. Time: of the whole drawing over
that without a cache, medians of rounds in which thresholds take turns.
"""

import argparse
import json
from pathlib import Path
from statistics import fmean, median
from time import perf_counter

import torch

from nemo_vfm.config import build, compose
from nemo_vfm.diffusion.generated_videos import GeneratedVideos, VideoRequest
from nemo_vfm.diffusion.step_cache import FirstBlockCache
from nemo_vfm.parallel.engine.inference_model import SamplingRanks
from nemo_vfm.synth.sample_videos import Sample, SamplingModel

RECIPE = Path(__file__).resolve().parents[1] / "recipes/diffusion/sample.yaml"
THRESHOLDS = (0.0, 0.1, 0.15, 0.2, 0.3, 0.5)


def drawn(job: Sample, model: torch.nn.Module, cache: FirstBlockCache | None) -> tuple[float, GeneratedVideos]:
    """Seconds, and the videos."""
    job.pipeline.step_cache = cache
    request = VideoRequest(prompts=[one.text for one in job.prompts.prompts()], num_frames=job.num_frames,
                           height=job.height_px, width=job.width_px, fps=job.fps, seed=0)  # fmt: skip
    began = perf_counter()
    made = job.pipeline.make(model, request)
    assert made is not None
    return perf_counter() - began, made


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--quick", action="store_true", help="one round")
    parser.add_argument("--steps", type=int, default=20, help="of the sampler")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    words = [f"checkpoint={given.checkpoint}", f"pipeline.sampler.steps={given.steps}"]
    job: Sample = build(compose(RECIPE, words))
    model = SamplingModel(job.model, job.checkpoint, job.weights, {}).build(0, SamplingRanks(), offload=False)
    caches = [None, *(FirstBlockCache(threshold=threshold) for threshold in THRESHOLDS)]
    rounds = [[drawn(job, model, cache)[0] for cache in caches] for _ in range(1 if given.quick else 7)]
    seconds = [median(times) for times in zip(*rounds, strict=True)]
    print(f"torch {torch.__version__}, {given.steps} steps; without a cache {seconds[0]:.2f} s")
    print("| threshold | blocks left out | latents | PSNR, dB | time |\n|---|---|---|---|---|")
    told: dict[str, float] = {"no cache, s": seconds[0]}
    for threshold, time_s in zip(THRESHOLDS, seconds[1:], strict=True):
        _, made = drawn(job, model, FirstBlockCache(threshold=threshold, measure=True))
        error, worst = fmean(one.latents for one in made.errors), min(one.psnr_db for one in made.errors)
        share = made.num_skipped / made.num_blocks
        print(f"| {threshold} | {share:.0%} | {error:.1e} | {worst:.1f} | {time_s / seconds[0]:.2f} |")
        told |= {f"{threshold}, blocks left out": share, f"{threshold}, latent error": error,
                 f"{threshold}, psnr_db": worst, f"{threshold}, s": time_s}  # fmt: skip
    if given.json:
        given.json.write_text(json.dumps(told))


if __name__ == "__main__":
    main()
