"""Compares our FP8 with torchao, with a second implementation, with `scaled_mm`, and with training in float32.

    python benchmarks/fp8.py [--quick] [--json FILE]

bytes_differing: elements and scales of 500 seeded tensors in float32 and bf16, E4M3 and E5M2, with and without
powers of two, against torchao (one scale for a tensor, a row, MXFP8 with RCEIL) and against numpy (blocks, delayed
scaling). Left out and counted are scales for which torchao has another convention: an amax that is 0, infinite, NaN or
below 1e-12; and for MXFP8 a quotient just above a power of two, which its logarithm takes for that power.
scaled_mm_error: the largest difference between emulated products and torch's, over the largest number.
loss_gap: a GPT of width 128 and 3 layers learns the bytes of docs/ for 200 steps; the mean of its last 100 losses over
that in float32, less 1; the mean of 3 seeds, the largest over recipes.
control_gap: the same with a fault, gradients in E4M3 without a scale.
emulation_over_torchao: time of forward and backward of a linear of width 512 over torchao's emulation, both with one
scale for a tensor; the median of rounds that take turns.

`--quick` has 100 tensors, 60 steps, one seed, current scaling and MXFP8.
"""

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torchao
from low_precision.tensors import bytes_differing
from torch import Tensor, nn
from torchao.float8 import Float8LinearConfig, convert_to_float8_training

from nemo_vfm.core.fp8 import RECIPES, Fp8, Recipe
from nemo_vfm.core.precision import Precision
from nemo_vfm.core.types.sample_batches import TokenBatch
from nemo_vfm.language.next_token_task import NextToken
from nemo_vfm.models.gpt import GPT
from nemo_vfm.parallel.engine.step_runner import EngineInputs
from nemo_vfm.parallel.engine.torch_engine import TorchEngine
from nemo_vfm.parallel.fp8.fp8_linear import to_fp8
from nemo_vfm.parallel.fp8.fp8_product import emulated_product, native_product
from nemo_vfm.parallel.fp8.operands import Operands
from nemo_vfm.parallel.fp8.quantise import E4M3, E5M2, Fp8Tensor, quantise, quantise_by

DOCS = Path(__file__).resolve().parents[1] / "docs"
BATCH, LENGTH, LEARNING_RATE = 16, 64, 5e-4  # at 2e-3 seeds lie 0.5 % apart


def scaled_mm_error() -> float:
    """The largest of some products' errors, relative to the largest number of each product."""
    worst, random = 0.0, torch.Generator().manual_seed(0)
    for granularity in ("tensor", "row"):
        for dtype in (E4M3, E5M2):
            for rows, columns, inner in ((16, 32, 64), (48, 64, 512), (80, 16, 1024)):
                a = quantise(torch.randn(rows, inner, generator=random), granularity, dtype)
                b = quantise(torch.randn(columns, inner, generator=random), granularity)
                native = native_product(a, b, fast=False)
                worst = max(worst, float((emulated_product(a, b) - native).abs().max() / native.abs().max()))
    return worst


def losses(seed: int, spec: Fp8 | None, steps: int) -> list[float]:
    """Of a training by the engine."""
    engine, text = TorchEngine(), _text()
    model = partial(GPT, vocab=256, width=128, depth=3, heads=4, mlp_hidden=256)
    optimizer = partial(torch.optim.AdamW, lr=LEARNING_RATE)
    engine = engine.start(EngineInputs(model, NextToken(), optimizer, Precision("fp32", spec), seed))
    random = torch.Generator().manual_seed(seed)
    return [engine.step([_batch(text, step, random)]).loss for step in range(steps)]


def _text() -> Tensor:
    return torch.tensor(list(b"".join(path.read_bytes() for path in sorted(DOCS.glob("*.md")))))


def _batch(text: Tensor, step: int, random: torch.Generator) -> TokenBatch:
    begins = torch.randint(len(text) - LENGTH - 1, (BATCH, 1), generator=random)
    rows = text[begins + torch.arange(LENGTH + 1)]
    keys = tuple(f"{step}-{row}" for row in range(BATCH))
    return TokenBatch(step, keys, torch.ones(BATCH), rows[:, :-1], rows[:, 1:])


def gap(seeds: int, spec: Fp8, steps: int, in_fp32: list[list[float]]) -> float:
    """Mean over seeds of the last losses over those in float32, less 1."""
    last = steps // 2
    found = [losses(seed, spec, steps) for seed in range(seeds)]
    return statistics.fmean(
        statistics.fmean(ours[-last:]) / statistics.fmean(theirs[-last:]) - 1
        for ours, theirs in zip(found, in_fp32, strict=True)
    )


@contextmanager
def unscaled_gradients() -> Iterator[None]:
    """A fault: gradients of a mean loss, as other frameworks have them, in E4M3 without a scale."""
    kept = Operands.quantise_both_ways

    def faulty(self: Operands, x: Tensor, role: str, **which: bool) -> tuple[Fp8Tensor | None, Fp8Tensor | None]:
        if role != "gradient":
            return kept(self, x, role, **which)
        found = quantise_by(x, torch.tensor(1.0 / (BATCH * LENGTH)), E4M3)
        return found, Fp8Tensor(found.elements.T, found.scale)

    Operands.quantise_both_ways = faulty  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        Operands.quantise_both_ways = kept  # type: ignore[method-assign]


def emulation_over_torchao(rounds: int) -> float:
    """Time of ours over theirs."""
    torch.manual_seed(0)
    ours = to_fp8(nn.Linear(512, 512, bias=False), Fp8())
    theirs = convert_to_float8_training(
        nn.Sequential(nn.Linear(512, 512, bias=False)), config=Float8LinearConfig(emulate=True)
    )
    x = torch.randn(1024, 512)
    timed = [[_seconds(one, x) for one in (ours, theirs)] for _ in range(rounds + 2)][2:]
    return statistics.median(mine / peer for mine, peer in timed)


def _seconds(linear: nn.Module, x: Tensor) -> float:
    own = x.clone().requires_grad_()
    began = time.perf_counter()
    for _ in range(4):
        linear(own).square().sum().backward()
    return time.perf_counter() - began


def figures(quick: bool) -> dict[str, Any]:
    """All of them, said as they come."""
    found: dict[str, Any] = {}
    differing = bytes_differing(100 if quick else 500)
    for way, count in differing.differing.items():
        print(f"{way}: {count:,} of {differing.compared[way]:,} bytes differ, {differing.corners[way]:,} corners")
    found["bytes_differing"] = sum(differing.differing.values())
    found["scaled_mm_error"] = scaled_mm_error()
    seeds, steps = (1, 60) if quick else (3, 200)
    in_fp32 = [losses(seed, None, steps) for seed in range(seeds)]
    recipes: tuple[Recipe, ...] = ("current", "mxfp8") if quick else RECIPES
    gaps = {recipe: gap(seeds, Fp8(recipe=recipe), steps, in_fp32) for recipe in recipes}
    print("\n| recipe | loss over float32's, less 1 |\n|---|---|")
    print("\n".join(f"| {recipe} | {value:+.5f} |" for recipe, value in gaps.items()))
    found["loss_gap"] = max(gaps.values())
    with unscaled_gradients():
        found["control_gap"] = gap(seeds, Fp8(), steps, in_fp32)
    found["emulation_over_torchao"] = emulation_over_torchao(5 if quick else 25)
    return found


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    print(f"torch {torch.__version__}, torchao {torchao.__version__}, {torch.get_num_threads()} threads")
    found = figures(given.quick)
    print("\n" + json.dumps(found))
    if given.json:
        given.json.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
