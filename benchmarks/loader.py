"""Compares the throughput of our loader with webdataset and megatron-energon on the same shards.

    python benchmarks/loader.py [--quick] [--json FILE] [--rounds N] [--only latents,energon,video,unique]

samples_per_s_ratio: our samples a second over webdataset's, cached latents, from making the loader (workers started,
our index read) to the last batch of one epoch. resume_ratio: time to our first batch when starting at 90 % of the epoch
over starting at its beginning (loading/latents.py).
energon_samples_per_s_ratio: ours over megatron-energon's, the same shards, once both run (loading/energon.py).
video_clips_per_s_ratio: ours over webdataset with decord, the same frames of mp4 clips, once both run;
video_clips_per_cpu_s_ratio: the same by the workers' CPU seconds (loading/video.py).
unique_fetched_over_formula_R, unique_gathered_over_formula_R: bytes moved by R = 2 and 4 ranks with shared fetching,
over what the formula says; plain_over_unique_fetched_R: what plain loading fetches over that (loading/unique.py).

Rounds run A-B-A-B, so that a busy machine slows both alike; each figure is the median of the rounds' ratios.
"""

import argparse
import json
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import torch
from loading import energon, latents, unique, video

from nemo_vfm.core.log import logger

PARTS = ("latents", "energon", "video", "unique")


def measured(part: str, folder: Path, num_samples: int, rounds: int) -> dict[str, float]:
    """The figures of one part; `folder` holds the shards of latents, and room beside them for clips."""
    print(f"\n{part}")
    parts: dict[str, Callable[[], dict[str, float]]] = {
        "latents": lambda: latents.measure(folder, num_samples, rounds),
        "energon": lambda: energon.measure(folder, num_samples, rounds),
        "video": lambda: video.measure(folder.parent / "clips", num_samples // 32, rounds),
        "unique": lambda: unique.measure(folder),
    }
    return parts[part]()


def main() -> None:
    """Parse, measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="1,024 samples and 32 clips instead of 8,192 and 256")
    parser.add_argument("--rounds", type=int, default=7, help="default 7")
    parser.add_argument("--only", default=",".join(PARTS), help="parts, with commas between them")
    parser.add_argument("--json", type=Path, help="where the figures go")
    args = parser.parse_args()
    logger().setLevel("WARNING")
    num_samples = 1024 if args.quick else 8192
    names = ("webdataset", "megatron-energon", "decord", "torch", "safetensors")
    print(", ".join(f"{name} {version(name)}" for name in names))
    print(f"{latents.WORKERS} workers, {torch.get_num_threads()} threads in the main process")
    shapes = f"latents {latents.LATENT_SHAPE} float32, text {latents.TEXT_SHAPE}, batch {latents.BATCH}"
    print(f"{shapes}, {num_samples} samples")
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "latents"
        latents.write(folder, num_samples)
        for part in args.only.split(","):
            figures |= measured(part, folder, num_samples, args.rounds)
    print()
    for name, figure in figures.items():
        print(f"{name}: {figure:.3f}")
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
