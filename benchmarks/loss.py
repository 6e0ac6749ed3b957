"""Compares the loss of a large vocabulary by runs of tokens with one that holds all scores, in memory and in time.

    python benchmarks/loss.py [--quick] [--json FILE] [--rounds N]

Both: 4,096 tokens of width 512, 64,000 words, the last linear and the cross-entropy, forward and backward. The other
side is what a model of plain PyTorch does, `cross_entropy(linear(x, weight), targets)`. `memory_ratio` is our bytes
over its at the fullest moment, beyond x, the matrix and their gradients; `time_ratio` our seconds over its, the median
over rounds A-B-A-B; both in fp32. Losses and gradients must be equal to 1e-6. Under bf16 autocast, with `_bf16` in its
name, the sum of the matrix's gradient over runs is kept in fp32. `--quick` takes 1,024 tokens and fewer rounds.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from nemo_vfm.core import device
from nemo_vfm.parallel.layers.linear import Linear, native_products
from nemo_vfm.parallel.layers.linear_token_losses import linear_token_losses
from tests.support.measured_step import max_allocated

WIDTH, WORDS = 512, 64_000
CLOSE = {torch.float32: 1e-6, torch.bfloat16: 1e-2}
Side = Callable[[], Tensor]


class Case:
    """One linear and one batch of tokens, and both ways to their losses."""

    def __init__(self, tokens: int, dtype: torch.dtype) -> None:
        torch.manual_seed(0)
        self.head, self.dtype = Linear(WIDTH, WORDS, bias=False), dtype
        self.x_BSD = torch.randn(1, tokens, WIDTH, requires_grad=True)
        self.targets_BS = torch.randint(WORDS, (1, tokens))

    def ours(self) -> Tensor:
        """By runs of tokens; each counts alike in the mean."""
        return linear_token_losses(self.head, self.x_BSD, self.targets_BS, torch.ones(self.targets_BS.shape)).mean()

    def plain(self) -> Tensor:
        """With all scores."""
        return F.cross_entropy(F.linear(self.x_BSD, self.head.weight).flatten(0, 1), self.targets_BS.flatten())

    def step(self, side: Side) -> float:
        """The loss, after a backward pass."""
        self.x_BSD.grad = self.head.weight.grad = None
        with torch.autocast("cpu", torch.bfloat16, enabled=self.dtype == torch.bfloat16), native_products():
            loss = side()
        loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.detach())

    def require_equal(self) -> None:
        """Stop where losses or gradients differ."""
        found = []
        for side in (self.ours, self.plain):
            loss = self.step(side)
            assert self.x_BSD.grad is not None and self.head.weight.grad is not None
            found.append((torch.tensor(loss), self.x_BSD.grad, self.head.weight.grad))
        apart = max(float((one - other).norm() / other.norm()) for one, other in zip(*found, strict=True))
        print(f"  largest relative difference of loss and gradients: {apart:.1e}")
        if not apart <= CLOSE[self.dtype]:
            raise SystemExit(f"the two differ by {apart:.1e}, more than {CLOSE[self.dtype]}; nothing is compared")

    def bytes(self, side: Side) -> int:
        """At the fullest moment, beyond what both must have."""
        self.x_BSD.grad = self.head.weight.grad = None
        most = max_allocated(lambda: None, lambda: self.step(side))
        return most - self.x_BSD.nbytes - self.head.weight.nbytes  # the gradients; the rest was there before


def measure(tokens: int, dtype: torch.dtype, rounds: int) -> tuple[float, float]:
    """Ratios of memory and of time."""
    case = Case(tokens, dtype)
    case.require_equal()
    ours, plain = case.bytes(case.ours), case.bytes(case.plain)
    seconds: list[tuple[float, float]] = []
    for _ in range(rounds):
        began = time.perf_counter()
        case.step(case.ours)
        between = time.perf_counter()
        case.step(case.plain)
        seconds.append((between - began, time.perf_counter() - between))
    medians = [statistics.median(column) for column in zip(*seconds, strict=True)]
    print(f"  {ours / 1e6:,.0f} MB and {plain / 1e6:,.0f} MB beside the operands and their gradients")
    print(f"  {medians[0]:.3f} s and {medians[1]:.3f} s, medians of {rounds} rounds")
    return ours / plain, statistics.median(one / other for one, other in seconds)


def main() -> None:
    """Measure and print; write JSON where asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="1,024 tokens, 5 rounds")
    parser.add_argument("--json", type=Path, help="write {figure: number} here")
    parser.add_argument("--rounds", type=int, help="7 unless told")
    options = parser.parse_args()
    torch.set_num_threads(2)
    tokens, rounds = (1024, options.rounds or 5) if options.quick else (4096, options.rounds or 7)
    print(f"torch {torch.__version__}, {device.describe()}")
    print(f"{tokens:,} tokens, width {WIDTH}, {WORDS:,} words")
    figures = {}
    for name, dtype in (("", torch.float32), ("_bf16", torch.bfloat16)):
        slow = dtype == torch.bfloat16 and not device.has_fast_bf16()
        print(f"{'bf16 autocast' if name else 'fp32'}{' (no bf16 products here)' * slow}:")
        if slow:
            continue
        figures[f"memory_ratio{name}"], figures[f"time_ratio{name}"] = measure(tokens, dtype, rounds)
    for name, value in figures.items():
        print(f"{name} {value:.4f}")
    if options.json:
        options.json.write_text(json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()
