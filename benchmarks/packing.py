"""Compares packed with padded batches of log-normal lengths: real tokens a second of our DiT, and planning time.

    python benchmarks/packing.py [--quick] [--json FILE] [--rounds N]

tokens_per_s_ratio: forward and backward of one DiT over batches of 8 samples whose lengths are log-normal (median 512,
sigma 1), cut to 64..4,096 tokens: the batch as one sequence without padding, against the batch padded to its longest
sample. Both have the same real tokens, and all of them count. Padded attention is given no mask, which would cost it
more. Rounds alternate between the two, so that a busy machine slows both. The ratio is that of the total times of all
batches, each the least of its rounds.
pack_time_s: planning packs of 16,384 tokens from 10,000 such lengths, all together, the least of 9 times.
"""

import argparse
import json
import math
import random
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from nemo_vfm.core import device
from nemo_vfm.data.batching.packing import measure_packing, pack
from nemo_vfm.models.dit import DiT

MEDIAN, SIGMA, SHORTEST, LONGEST = 512, 1.0, 64, 4096
BATCH, BUDGET, LENGTHS = 8, 16_384, 10_000
HEADS, HEAD_DIM, CHANNELS, TEXT_DIM, TEXT_TOKENS = 6, 64, 16, 256, 64


def lengths(count: int, seed: int, shorter: int = 1) -> list[int]:
    """Tokens of so many samples, each divided by `shorter`."""
    numbers = random.Random(seed)
    drawn = (numbers.lognormvariate(math.log(MEDIAN), SIGMA) for _ in range(count))
    return [min(max(round(length), SHORTEST), LONGEST) // shorter for length in drawn]


def size(tokens: int) -> tuple[int, int, int]:
    """An image of 2 x 2 patches in a line, which is as many tokens."""
    return 1, 2, 2 * tokens


def inputs(count: int) -> dict[str, Tensor]:
    """What samples have besides their latents."""
    text, mask = torch.randn(count, TEXT_TOKENS, TEXT_DIM), torch.ones(count, TEXT_TOKENS, dtype=torch.bool)
    return {"noise_B": torch.rand(count), "text_BLD": text, "text_mask_BL": mask, "fps_B": torch.full((count,), 24.0)}


def packed(tokens: Sequence[int]) -> dict[str, Tensor]:
    """The samples one after another."""
    sizes_N3 = torch.tensor([size(length) for length in tokens])
    return {**inputs(len(tokens)), "latents_XC": torch.randn(4 * sum(tokens), CHANNELS), "sizes_N3": sizes_N3}


def padded(tokens: Sequence[int]) -> dict[str, Tensor]:
    """Each as long as the longest."""
    return {**inputs(len(tokens)), "latents_BCTHW": torch.randn(len(tokens), CHANNELS, *size(max(tokens)))}


def seconds(model: nn.Module, given: dict[str, Tensor]) -> tuple[float, float]:
    """Of one forward and backward, by the wall clock and of this process's CPU."""
    model.zero_grad(set_to_none=True)
    device.synchronize()
    wall, cpu = time.perf_counter(), time.process_time()
    model(**given).float().square().mean().backward()
    device.synchronize()
    return time.perf_counter() - wall, time.process_time() - cpu


def least(model: nn.Module, tokens: Sequence[int], rounds: int) -> list[float]:
    """Seconds of one batch: wall packed, CPU packed, wall padded, CPU padded."""
    sides = [{name: x if name == "sizes_N3" else x.to(device.device()) for name, x in given.items()}
             for given in (packed(tokens), padded(tokens))]  # fmt: skip
    measured = [[part for given in sides for part in seconds(model, given)] for _ in range(rounds)]
    return [min(column) for column in zip(*measured, strict=True)]


def throughput(model: nn.Module, batches: Sequence[Sequence[int]], rounds: int) -> float:
    """How many times as many real tokens a second are packed; prints a line for each batch."""
    totals = [0.0] * 4
    for tokens in batches:
        found = least(model, tokens, rounds)
        totals = [total + one for total, one in zip(totals, found, strict=True)]
        print(f"  {sum(tokens):>6,} real tokens, {BATCH * max(tokens):>6,} padded: packed {found[0]:7.3f} s, padded "
              f"{found[2]:7.3f} s, ratio {found[2] / found[0]:.2f}", flush=True)  # fmt: skip
    real = sum(map(sum, batches))
    print(f"  {real / totals[0]:,.0f} real tokens/s packed, {real / totals[2]:,.0f} padded to the longest of {BATCH}; "
          f"ratio by CPU seconds {totals[3] / totals[1]:.2f}")  # fmt: skip
    return totals[2] / totals[0]


def planning() -> float:
    """Seconds for all lengths; prints how full the packs are."""
    every, taken = lengths(LENGTHS, 1), []
    for _ in range(9):
        before = time.perf_counter()
        packs = pack(every, BUDGET, lookahead=LENGTHS)
        taken.append(time.perf_counter() - before)
    full = measure_packing(packs, BUDGET)
    print(f"  {LENGTHS:,} lengths to {full.num_packs} packs of {BUDGET:,} tokens, {full.efficiency:.2%} full")
    return min(taken)


def main() -> None:
    """Parse, measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help="1 layer and 2 batches of samples an eighth as long, instead of 2 and 6"
    )
    parser.add_argument("--rounds", type=int, default=3, help="default 3")
    parser.add_argument("--json", type=Path, help="where the figures go")
    args = parser.parse_args()
    layers, count, shorter = (1, 2, 8) if args.quick else (2, 6, 1)
    torch.manual_seed(0)
    model = DiT(in_channels=CHANNELS, text_dim=TEXT_DIM, width=HEADS * HEAD_DIM, depth=layers, heads=HEADS)
    model.to(device.device()).train()
    print(f"torch {torch.__version__}, {device.describe()}; DiT of {layers} layers, width {HEADS * HEAD_DIM}, fp32")
    drawn = lengths(BATCH * count, 0, shorter)
    batches = [drawn[first : first + BATCH] for first in range(0, len(drawn), BATCH)]
    seconds(model, packed([SHORTEST] * 2))  # the first call of anything is slow
    found = {"tokens_per_s_ratio": throughput(model, batches, args.rounds), "pack_time_s": planning()}
    print()
    for name, figure in found.items():
        print(f"{name}: {figure:.3f}")
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
