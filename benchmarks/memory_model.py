"""Compares the memory model with the measured peak of real steps, over models, layouts and precisions.

    python benchmarks/memory_model.py [--quick] [--json FILE]

Small models of three kinds train for three steps, and the peak of the last two is measured: on a CPU torch's profiler
sees every allocation. Layouts without a pipeline run in one process under torch's fake group, whose messages arrive at
once: gloo's threads release buffers at any time, and the profiler does not see that. Pipelines run on real ranks, of
which the fullest counts. With a GPU its allocator is asked, on one device alone.

worst: the largest error of all rows, as a share of what was measured.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the measurement lies beside the tests

from nemo_vfm.core.device import describe, device
from nemo_vfm.core.precision import Precision
from nemo_vfm.core.types.batch import Batch
from nemo_vfm.models.dit import DiT
from nemo_vfm.models.gpt import GPT
from nemo_vfm.models.st_dit import STDiT
from nemo_vfm.parallel.engine.nonfinite_guard import NonFinite
from nemo_vfm.parallel.plan.plan import ParallelPlan
from nemo_vfm.parallel.verify.rank_pool import Pool
from nemo_vfm.perf.memory import facts, memory
from tests.support.measured_step import Measured, measured_step

VIDEO = {"latents_BCTHW": (1, 16, 4, 16, 16), "text_BLD": (1, 20, 64)}
TEXT = {"tokens_BS": (1, 512)}
SMALL = {"in_channels": 16, "text_dim": 64, "width": 192, "depth": 4, "heads": 4}
WORDS = {"vocab": 2000, "width": 256, "depth": 4, "heads": 4, "groups": 2}
MODELS: dict[str, tuple[Any, Mapping[str, tuple[int, ...]]]] = {
    "DiT": (partial(DiT, **SMALL), VIDEO),
    "DiT, rank 16": (partial(DiT, modulation_rank=16, **SMALL), VIDEO),
    "ST-DiT, rank 16": (partial(STDiT, modulation_rank=16, **SMALL), VIDEO),
    "GPT, Llama": (partial(GPT, mlp_hidden=512, **WORDS), TEXT),
    "GPT, Nemotron": (partial(GPT, mlp_hidden=1024, activation="squared_relu", norm="layernorm1p", **WORDS), TEXT),
}
ROWS = 2
LAYOUTS: tuple[Mapping[str, Any], ...] = (
    {"microbatches": 2}, {"tensor": 2}, {"tensor": 2, "sequence": True}, {"shard": 2}, {"shard": 2, "microbatches": 2},
    {"shard": 16}, {"tensor": 2, "sequence": True, "shard": 4}, {"context": 2},
)  # fmt: skip
PIPELINES: tuple[Mapping[str, Any], ...] = (
    {"pipeline": 2, "microbatches": 2}, {"pipeline": 2, "microbatches": 4},
    {"pipeline": 2, "virtual": 2, "microbatches": 4}, {"pipeline": 2, "shard": 2, "microbatches": 4},
)  # fmt: skip

Recompute = Literal["none", "blocks"]
RECOMPUTE: tuple[Recompute, ...] = ("none", "blocks")
Arithmetic = Literal["fp32", "bf16"]


@dataclass(frozen=True)
class Case:
    """One line of the table.

    Args:
        model: its name here.
        layout: the plan's arguments.
        precision: of the arithmetic.
        recompute: the engine's.
    """

    model: str
    layout: Mapping[str, Any]
    precision: Arithmetic = "fp32"
    recompute: Recompute = "none"

    @property
    def plan(self) -> ParallelPlan:
        """What the layout is."""
        return ParallelPlan(**self.layout)


class Anyway(NonFinite):
    """Under a fake group numbers mean nothing, and the optimizer is to step all the same."""

    def may_update(self, loss: float, grad_norm: float, microbatches: Sequence[Batch]) -> bool:
        """Always."""
        return True


def cases(quick: bool) -> Iterator[Case]:
    """All lines."""
    for model in ("DiT", "GPT, Llama") if quick else MODELS:
        for recompute in RECOMPUTE:
            yield Case(model, {}, "fp32", recompute)
            if not quick:
                yield Case(model, {}, "bf16", recompute)
    if device().type == "cuda":
        return
    yield from (Case("GPT, Llama", layout, "fp32", "none") for layout in LAYOUTS[: 2 if quick else None])
    if not quick:
        yield from (Case("GPT, Llama", layout, "fp32", "blocks") for layout in (*LAYOUTS, *PIPELINES))
        yield from (Case("GPT, Llama", layout, "fp32", "none") for layout in PIPELINES)
        yield from (Case("DiT", layout, "fp32", "none") for layout in (*LAYOUTS, *PIPELINES))
        yield from (Case("ST-DiT, rank 16", layout, "fp32", "none") for layout in (*LAYOUTS[:4], *PIPELINES[:2]))


def step(rank: int, case: Case) -> Measured:
    """On this rank."""
    build, shapes = MODELS[case.model]
    how = {"recompute": case.recompute, "nonfinite": Anyway()}
    rows = ROWS * case.plan.microbatches
    return measured_step(
        rank, build, shapes, case.plan, rows=rows, precision=Precision(case.precision), how=how
    )  # fmt: skip


@contextmanager
def faked(world: int) -> Iterator[None]:
    """The first of so many ranks that do not exist."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world)
    try:
        yield
    finally:
        dist.destroy_process_group()


def measured(case: Case, pool: Pool) -> int:
    """Bytes on the fullest rank."""
    if case.plan.pipeline > 1:
        return max(one.most for one in pool.call(case.plan.world, step, case))
    with faked(case.plan.world) if case.plan.world > 1 else nullcontext():
        return step(0, case).most


def main() -> None:
    """Print, and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few lines")
    parser.add_argument("--json", type=Path, help="write the lines here")
    arguments = parser.parse_args()
    with torch.device("meta"):
        known = {name: facts(build(), shapes) for name, (build, shapes) in MODELS.items()}
    print(f"{describe()}; MB at the fullest moment of a step\n")
    lines, pool = [], Pool(max(plan["pipeline"] * plan.get("shard", 1) for plan in PIPELINES))
    try:
        for case in cases(arguments.quick):
            found = measured(case, pool)
            said = memory(
                known[case.model], case.plan, precision=case.precision, recompute=case.recompute, microbatch_rows=ROWS,
                gpu=device().type == "cuda",
            )  # fmt: skip
            error = said.total / found - 1
            layout = " ".join(f"{name} {value}" for name, value in case.layout.items())
            what = f"{case.model:16} {layout or 'one device':36} {case.precision} {case.recompute:6}"
            print(
                f"{what} measured {found / 1e6:6.1f}  said {said.total / 1e6:6.1f} {error:+6.1%}  {said.moment}",
                flush=True,
            )
            lines.append(asdict(case) | {"measured": found, "said": said.total, "error": error, "moment": said.moment})
    finally:
        pool.stop()
    worst = max(abs(line["error"]) for line in lines)
    print(f"\nworst {worst:.1%} of {len(lines)} lines; mean {sum(abs(one['error']) for one in lines) / len(lines):.1%}")
    if arguments.json:
        arguments.json.write_text(json.dumps({"worst": worst, "lines": lines}, indent=1))


if __name__ == "__main__":
    main()
