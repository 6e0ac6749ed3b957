"""Measures what sampling in FP8 changes in the pixels of a trained model, by recipe, with and without attention.

    python benchmarks/fp8_sampling.py CHECKPOINT [--quick] [--json FILE]

CHECKPOINT is that of a training of the quickstart, such as runs/quickstart/train/checkpoints. The recipe
`diffusion/sample.yaml` draws its prompts from the same noise in float32, in bf16 and in FP8, all else in float32. PSNR
is of all pixels of the worst video against float32. Times are of the emulation, and say nothing of a GPU.
"""

import argparse
import json
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import Tensor

from nemo_vfm.config import build, compose
from nemo_vfm.core.fp8 import Fp8
from nemo_vfm.diffusion.generated_videos import VideoRequest
from nemo_vfm.parallel.engine.inference_model import SamplingRanks
from nemo_vfm.synth.sample_videos import Sample, SamplingModel

RECIPE = Path(__file__).resolve().parents[1] / "recipes/diffusion/sample.yaml"


def drawn(job: Sample, spec: Fp8 | None, *, bf16: bool = False) -> Tensor:
    """Pixels of all videos, (B, T, H, W, C), uint8."""
    model = SamplingModel(job.model, job.checkpoint, job.weights, {}, spec).build(0, SamplingRanks(), offload=False)
    request = VideoRequest(prompts=[one.text for one in job.prompts.prompts()], num_frames=job.num_frames,
                           height=job.height_px, width=job.width_px, fps=job.fps, seed=0)  # fmt: skip
    with torch.autocast("cpu", torch.bfloat16) if bf16 else nullcontext():
        made = job.pipeline.make(model, request)
    assert made is not None
    return made.pixels_BTHWC


def psnr_db(found: Tensor, expected: Tensor) -> float:
    """Of the worst video."""
    squares = (found.double() - expected.double()).square().flatten(1).mean(1)
    return float(10 * torch.log10(255.0**2 / squares.max().clamp(min=1e-12)))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--quick", action="store_true", help="current scaling alone")
    parser.add_argument("--steps", type=int, default=20, help="of the sampler")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    words = [f"checkpoint={given.checkpoint}", f"pipeline.sampler.steps={given.steps}"]
    job: Sample = build(compose(RECIPE, words))
    exact, found = drawn(job, None), {"bf16": psnr_db(drawn(job, None, bf16=True), drawn(job, None))}
    for recipe in ("current",) if given.quick else ("current", "rowwise", "mxfp8"):
        for attention in (False, True):
            name = f"{recipe}, attention too" if attention else recipe
            found[name] = psnr_db(drawn(job, Fp8(recipe=recipe, attention=attention)), exact)
    print(f"torch {torch.__version__}, {given.steps} steps, {len(exact)} videos\n| | PSNR, dB |\n|---|---|")
    print("\n".join(f"| {name} | {value:.1f} |" for name, value in found.items()))
    if given.json:
        given.json.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
