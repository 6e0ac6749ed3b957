"""Compares a step of fused embedding tables with `nn.EmbeddingBag` and, where it is installed, with FBGEMM.

    python benchmarks/embedding.py [--quick] [--json FILE] [--rounds N] [--tables N ...]

T tables of 10,000 rows of width 64 in fp32, one feature a table, 10 uniform ids a sample, batch 2,048. A step is the
lookup of all tables from ids and lengths, the backward of a given gradient, and the update: ours and FBGEMM's by
row-wise AdaGrad, the bags' by torch's Adagrad (as it comes, element by element), once with sparse and once with dense
gradients, and with dense gradients and `fused=True` (which takes no sparse ones). Our check of lengths and ids is part
of our step. Rounds run A-B-C-A-B-C; a ratio is the median over rounds of (time of the peer / our time), above 1 where
we are faster.

over_bags_T: of the faster of the two without `fused=True`. over_fused_bags_T: of the one with it. Both with the kernels
that a user here gets; torch_over_bags_26 is over_bags_26 with those in torch operators alone.
over_fbgemm_26: over FBGEMM's table-batched CPU operator (exact row-wise AdaGrad), whose ids, offsets and gradients
are laid out before the step; run it with the Python of `make torchrec`.
loop_ratio: samples a second of `Train`, with its loader and callbacks, over those of the bare step in a plain loop, for
the model of recipes/recommendation/dlrm_teacher.yaml; rounds A-B-A-B, one thread of torch (the loader has its own).
CPU seconds are printed as a cross-check of the wall clock. `--quick` has three rounds, and of the loop fewer steps.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from unittest.mock import patch

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the checkout's own helpers, wherever this is called

from benchmarks.recommending import train_loop
from nemo_vfm.core.optional import available
from nemo_vfm.sparse.jagged import Jagged
from nemo_vfm.sparse.tables import row_kernels
from nemo_vfm.sparse.tables.fused_tables import FusedTables
from nemo_vfm.sparse.tables.row_optimizer import RowWiseAdaGrad
from nemo_vfm.sparse.tables.table_spec import TableSpec

ROWS, WIDTH, POOLING, LR, EPS = 10_000, 64, 10, 0.01, 1e-8
BAGS, FUSED = ("bags, dense", "bags, sparse"), "bags, dense, fused"
BATCH = 2_048


@dataclass(frozen=True)
class Inputs:
    """Ids of each table, (batch * POOLING,), and the gradient of its pooled vectors, (batch, WIDTH)."""

    batch: int
    ids: list[Tensor]
    grads: list[Tensor]


@dataclass
class Side:
    """One competitor and its measurements."""

    step: Callable[[], None]
    wall_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)


def inputs(tables: int, batch: int) -> Inputs:
    """The same for all sides and rounds."""
    numbers = torch.Generator().manual_seed(0)
    ids = [torch.randint(0, ROWS, (batch * POOLING,), generator=numbers) for _ in range(tables)]
    return Inputs(batch, ids, [torch.randn(batch, WIDTH, generator=numbers) for _ in range(tables)])


def ours(given: Inputs) -> Callable[[], None]:
    """A step of `FusedTables`."""
    specs = {f"t{index}": TableSpec(ROWS, WIDTH, (f"f{index}",)) for index in range(len(given.ids))}
    tables = FusedTables(specs, RowWiseAdaGrad(lr=LR, eps=EPS))
    lengths_B = torch.full((given.batch,), POOLING)

    def step() -> None:
        out = tables.lookup({f"f{index}": Jagged(ids, lengths_B) for index, ids in enumerate(given.ids)})
        torch.autograd.backward(list(out.values()), given.grads)
        tables.update(1.0)

    return step


def in_torch(given: Inputs) -> Callable[[], None]:
    """The same step as where numba is not installed."""
    without_numba = patch.object(row_kernels, "numba_usable", lambda tensor: False)
    with without_numba:
        step = ours(given)

    def step_without_numba() -> None:
        with without_numba:
            step()

    return step_without_numba


def bags(given: Inputs, sparse: bool, fused: bool | None = None) -> Callable[[], None]:
    """A step of one `nn.EmbeddingBag` a table."""
    modules = [nn.EmbeddingBag(ROWS, WIDTH, mode="sum", sparse=sparse) for _ in given.ids]
    parameters = [parameter for module in modules for parameter in module.parameters()]
    optimizer = torch.optim.Adagrad(parameters, lr=LR, eps=EPS, fused=fused)
    begins = torch.arange(0, given.batch * POOLING, POOLING)

    def step() -> None:
        optimizer.zero_grad()
        out = [module(ids, begins) for module, ids in zip(modules, given.ids, strict=True)]
        torch.autograd.backward(out, given.grads)
        optimizer.step()

    return step


def fbgemm(given: Inputs) -> Callable[[], None]:
    """A step of FBGEMM's table-batched embedding on a CPU, with ids and gradients in one tensor as it wants them."""
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        ComputeDevice,
        SplitTableBatchedEmbeddingBagsCodegen,
    )

    specs = [(ROWS, WIDTH, EmbeddingLocation.HOST, ComputeDevice.CPU)] * len(given.ids)
    tables = SplitTableBatchedEmbeddingBagsCodegen(
        specs, optimizer=EmbOptimType.EXACT_ROWWISE_ADAGRAD, learning_rate=LR, eps=EPS
    )
    ids, grad_BF = torch.cat(given.ids), torch.cat(given.grads, 1)
    offsets = torch.arange(0, len(ids) + 1, POOLING)

    def step() -> None:
        tables(ids, offsets).backward(grad_BF)

    return step


def sides(tables: int, batch: int, with_fbgemm: bool) -> dict[str, Side]:
    """Ours first."""
    given = inputs(tables, batch)
    found = {"nemo_vfm": Side(ours(given))}
    if available("numba"):
        found["nemo_vfm, torch"] = Side(in_torch(given))
    found |= {name: Side(bags(given, sparse=name == "bags, sparse")) for name in BAGS}
    found[FUSED] = Side(bags(given, sparse=False, fused=True))
    if with_fbgemm:
        found["fbgemm"] = Side(fbgemm(given))
    return found


def measured(tables: int, batch: int, rounds: int, with_fbgemm: bool) -> dict[str, Side]:
    """After one unmeasured round."""
    competitors = sides(tables, batch, with_fbgemm)
    for round_ in range(rounds + 1):
        for side in competitors.values():
            wall, cpu = time.perf_counter(), time.process_time()
            side.step()
            if round_:
                side.wall_s.append(time.perf_counter() - wall)
                side.cpu_s.append(time.process_time() - cpu)
    return competitors


def ratio(peer: list[float], own: list[float]) -> float:
    """The median over rounds."""
    return statistics.median(theirs / mine for theirs, mine in zip(peer, own, strict=True))


def report(tables: int, competitors: dict[str, Side]) -> dict[str, float]:
    """Print a line a side; the figures of this number of tables."""
    own = competitors["nemo_vfm"]
    for name, side in competitors.items():
        wall, cpu = statistics.median(side.wall_s), statistics.median(side.cpu_s)
        print(f"  {name:<20}{1e3 * wall:9.1f} ms{1e3 * cpu:9.1f} CPU ms")
    faster = min(BAGS, key=lambda name: statistics.median(competitors[name].wall_s))
    found = dict[str, float]()
    for figure, name in ((f"over_bags_{tables}", faster), (f"over_fused_bags_{tables}", FUSED)):
        found[figure] = ratio(competitors[name].wall_s, own.wall_s)
        by_cpu = ratio(competitors[name].cpu_s, own.cpu_s)
        print(f"  {figure}, of {name}: {found[figure]:.2f} (by CPU seconds {by_cpu:.2f})")
    if tables == 26:
        in_torch_s = competitors.get("nemo_vfm, torch", own).wall_s
        found["torch_over_bags_26"] = ratio(competitors[faster].wall_s, in_torch_s)
    if "fbgemm" in competitors:
        found[f"over_fbgemm_{tables}"] = ratio(competitors["fbgemm"].wall_s, own.wall_s)
    return found


def loop(batch: int, steps: int, rounds: int) -> dict[str, float]:
    """Print both sides; after one unmeasured round."""
    ours, bare, threads = train_loop.LoopTimes(), train_loop.LoopTimes(), torch.get_num_threads()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        train_loop.write_log(log, batch * (train_loop.WARM + steps + 1))
        given = train_loop.batches(log, batch, steps)
        for round_ in range(rounds + 1):
            train_loop.by_train(
                log, batch, steps, Path(folder) / f"run-{round_}", ours if round_ else train_loop.LoopTimes()
            )
            train_loop.by_hand(given, bare if round_ else train_loop.LoopTimes())
    torch.set_num_threads(threads)
    for name, side in (("Train", ours), ("bare step", bare)):
        wall, cpu = (1e3 * statistics.median(times) / steps for times in (side.wall_s, side.cpu_s))
        print(f"  {name:<20}{wall:9.1f} ms{cpu:9.1f} CPU ms a step, {1e3 * batch / wall:,.0f} samples/s")
    print(f"  by CPU seconds {ratio(bare.cpu_s, ours.cpu_s):.3f}")
    return {"loop_ratio": ratio(bare.wall_s, ours.wall_s)}


def main() -> None:
    """Parse, measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="three rounds, and a shorter loop")
    parser.add_argument("--rounds", type=int, help="measured rounds, 7 unless told (3 with --quick)")
    parser.add_argument("--tables", type=int, nargs="+", default=[10, 26, 100], help="numbers of tables")
    parser.add_argument("--json", type=Path, help="where the figures go")
    args = parser.parse_args()
    rounds, steps = (args.rounds or 3, 20) if args.quick else (args.rounds or 7, 60)
    has_fbgemm = available("fbgemm_gpu")
    peer = (
        f"fbgemm-gpu-cpu {version('fbgemm_gpu_cpu')}"
        if has_fbgemm
        else "over_fbgemm_26 not measured: no fbgemm-gpu here"
    )
    kernels = f"numba {version('numba')}" if available("numba") else "no numba"
    print(f"torch {version('torch')}, {torch.get_num_threads()} threads, {kernels}, fp32, batch {BATCH:,}; {peer}")
    figures: dict[str, float] = {}
    for tables in args.tables:
        print(f"{tables} tables of {ROWS:,} x {WIDTH}, pooling {POOLING}:")
        figures |= report(tables, measured(tables, BATCH, rounds, has_fbgemm and tables == 26))
    print(f"Train over its bare step: DLRM of 26 tables, batch {BATCH:,}, {steps} steps a round, 1 thread:")
    figures |= loop(BATCH, steps, rounds)
    for name, figure in figures.items():
        print(f"{name}: {figure:.4g}")
    if args.json:
        args.json.write_text(json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()
