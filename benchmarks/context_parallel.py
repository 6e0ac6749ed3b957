"""Measures the bytes that each scheme of attention over ranks sends, forward and backward, over its formula.

python benchmarks/context_parallel.py [--quick] [--json FILE] [--rounds N] [--ranks 2,4]

max_bytes_over_formula, min_bytes_over_formula: the largest and smallest such ratio over ranks, schemes, directions
and
cases: full, causal, packed with fewer key heads, bf16; and the temporal all-to-all of a video. Bytes are counted by
wrapping torch.distributed's own functions, not by our counter, which must agree with them.
seconds_SCHEME_R: forward and backward of the causal case on R ranks over gloo on this machine, the slowest rank's,
the median of the rounds. Ranks share this machine's processors, so it compares schemes and says nothing about a
cluster.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.multiprocessing import get_context

from nemo_vfm.parallel.context.attend import attend
from nemo_vfm.parallel.context.collectives import count_traffic
from nemo_vfm.parallel.context.scheme import AttentionSizes, Scheme, backward_bytes, forward_bytes
from nemo_vfm.parallel.layers.temporal_all_to_all import to_sequence, to_temporal

HEADS, WIDTH = 8, 64


@dataclass(frozen=True)
class Case:
    """One attention."""

    name: str
    kv_heads: int = HEADS
    causal: bool = False
    samples: int = 1
    dtype: torch.dtype = torch.float32

    def sizes(self, tokens: int) -> AttentionSizes:
        """As one rank sees it."""
        return AttentionSizes(1, HEADS, self.kv_heads, tokens, WIDTH, self.dtype.itemsize)

    def segments(self, length: int) -> list[int]:
        """Samples whose ends are not the ranks'."""
        each = length // self.samples
        return [each] * (self.samples - 1) + [length - each * (self.samples - 1)]


CASES = (
    Case("full"),
    Case("causal", causal=True),
    Case("packed", kv_heads=4, samples=3),
    Case("bf16", dtype=torch.bfloat16),
)


@dataclass(frozen=True)
class Row:
    """What one rank measured of one scheme and case; bytes are (handed over, by the formula)."""

    scheme: str
    case: str
    forward: tuple[int, float]
    backward: tuple[int, float]
    seconds: float

    def ratios(self) -> tuple[float, float]:
        """Handed over, by the formula: forward, backward."""
        return self.forward[0] / self.forward[1], self.backward[0] / self.backward[1]


def schemes(ranks: int) -> list[Scheme]:
    """All that `ranks` can run."""
    both = [Scheme("ring_ulysses", 2)] if ranks > 2 else []
    return [Scheme("all_gather"), Scheme("ring"), Scheme("ulysses"), *both]


@contextmanager
def handed_over() -> Iterator[list[int]]:
    """The bytes for other ranks in each call of torch.distributed while the block runs; an unknown call is an error."""
    found: list[int] = []
    names = [name for name in dir(dist) if name.startswith(("all_", "reduce", "batch_", "broadcast", "gather"))]
    kept = {name: getattr(dist, name) for name in names if callable(getattr(dist, name))}

    def noted(name: str) -> Callable[..., object]:
        def call(*arguments: object, **more: object) -> object:
            found.append(_bytes_for_others(name, arguments))
            return kept[name](*arguments, **more)

        return call

    for name in kept:
        setattr(dist, name, noted(name))
    try:
        yield found
    finally:
        for name, function in kept.items():
            setattr(dist, name, function)


def _bytes_for_others(name: str, arguments: Sequence[object]) -> int:
    if name == "batch_isend_irecv":
        return sum(call.tensor.nbytes for call in arguments[0] if call.op is dist.isend)  # type: ignore[attr-defined]
    output, own = arguments[:2]
    assert isinstance(output, Tensor) and isinstance(own, Tensor), f"{name} is not counted"
    if name in ("all_gather_single", "all_gather_into_tensor"):
        return output.nbytes - own.nbytes
    assert name in ("reduce_scatter_single", "reduce_scatter_tensor"), f"{name} is not counted"
    return own.nbytes - output.nbytes


def attention(scheme: Scheme, case: Case, tokens: int, rounds: int) -> Row:
    """One scheme and case on this rank."""
    ranks, sizes, seconds = dist.get_world_size(), case.sizes(tokens), []
    shapes = [(1, heads, tokens, WIDTH) for heads in (HEADS, case.kv_heads, case.kv_heads)]
    for _ in range(rounds):
        q, k, v = (torch.randn(shape, dtype=case.dtype, requires_grad=True) for shape in shapes)
        dist.barrier()
        before = time.perf_counter()
        with handed_over() as forward, count_traffic() as ours:
            out = attend(q, k, v, group=dist.group.WORLD, scheme=scheme, causal=case.causal,
                         segments=case.segments(tokens * ranks))  # fmt: skip
        with handed_over() as backward, count_traffic() as ours_back:
            out.sum().backward()
        seconds.append(time.perf_counter() - before)
        assert (ours.sent, ours_back.sent) == (sum(forward), sum(backward)), "our counter counts something else"
    return Row(
        scheme.kind, case.name, (sum(forward), forward_bytes(scheme, ranks, sizes)),
        (sum(backward), backward_bytes(scheme, ranks, sizes)), statistics.median(seconds),
    )  # fmt: skip


def time_lines(tokens: int) -> Row:
    """To the layout of attention over time and back, and the gradients' way."""
    ranks = dist.get_world_size()
    x = torch.randn(1, tokens, WIDTH, requires_grad=True)
    before = time.perf_counter()
    with handed_over() as forward:
        back = to_sequence(to_temporal(x, frames=2 * ranks, group=dist.group.WORLD), batch=1, group=dist.group.WORLD)
    with handed_over() as backward:
        back.sum().backward()
    expected = 2 * x.nbytes * (ranks - 1) / ranks
    return Row("time lines", "full", (sum(forward), expected), (sum(backward), expected), time.perf_counter() - before)


def on_rank(rank: int, ranks: int, store: Path, tokens: int, rounds: int) -> list[Row]:
    """All schemes and cases on one process."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    dist.init_process_group("gloo", store=dist.FileStore(str(store), ranks), rank=rank, world_size=ranks)
    rows = [attention(scheme, case, tokens, rounds) for scheme in schemes(ranks) for case in CASES]
    rows.append(time_lines(tokens))
    dist.barrier()
    dist.destroy_process_group()
    return rows


def measure(ranks: int, tokens: int, rounds: int) -> list[list[Row]]:
    """What every rank measured."""
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(ranks, get_context("spawn")) as processes:
        calls = [processes.submit(on_rank, rank, ranks, Path(folder) / "store", tokens, rounds)
                 for rank in range(ranks)]  # fmt: skip
        return [call.result() for call in calls]


def figures(ranks: int, by_rank: Sequence[Sequence[Row]]) -> dict[str, float]:
    """The slowest rank's seconds of the causal case, after printing a line for each scheme and case."""
    found = {}
    for rows in zip(*by_rank, strict=True):
        one, seconds = rows[0], max(row.seconds for row in rows)
        print(f"{ranks} ranks, {one.scheme:12} {one.case:7} forward {one.forward[0]:>11,} of {one.forward[1]:>13,.0f}"
              f" bytes, backward {one.backward[0]:>11,} of {one.backward[1]:>13,.0f}, {seconds:7.3f} s")  # fmt: skip
        if one.case == "causal":
            found[f"seconds_{one.scheme}_{ranks}"] = seconds
    return found


def main() -> None:
    """Parse, measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="128 tokens on each rank and one round, instead of 1,024")
    parser.add_argument("--rounds", type=int, default=3, help="default 3")
    parser.add_argument("--ranks", default="2,4", help="sizes of the group, with commas between them")
    parser.add_argument("--json", type=Path, help="where the figures go")
    args = parser.parse_args()
    tokens, rounds = (128, 1) if args.quick else (1024, args.rounds)
    print(f"torch {torch.__version__}, gloo; {HEADS} heads of {WIDTH}, {tokens} tokens on each rank")
    found: dict[str, float] = {}
    ratios: list[float] = []
    for ranks in map(int, args.ranks.split(",")):
        by_rank = measure(ranks, tokens, rounds)
        ratios += [ratio for rows in by_rank for row in rows for ratio in row.ratios()]
        found |= figures(ranks, by_rank)
    found = {"max_bytes_over_formula": max(ratios), "min_bytes_over_formula": min(ratios)} | found
    print()
    for name, figure in found.items():
        print(f"{name}: {figure:.3f}")
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
