"""Measures llm/nemotron4_1b's training step on one GPU: as the recipe has it, and with what overrides can change.

    python benchmarks/gpu_steps/nemotron.py [--json FILE] [--only WORDS] [--quick]

A step is 16 texts of 4,096 tokens, in so many microbatches, with random weights and tokens. `mfu_pct` counts all pairs
of tokens in attention, `mfu_causal_pct` those that a causal mask leaves. `planned_gb` is what `nemo-vfm plan`
expects, less cuBLAS's workspaces.
"""

from dataclasses import dataclass
from functools import partial

import torch
from timing import Figures, by_kind, drawn, mfu, report_of, timed

import nemo_vfm
from nemo_vfm.core.types.sample_batches import TokenBatch
from nemo_vfm.parallel.engine.step_runner import EngineInputs
from nemo_vfm.perf.flops import training_flops
from nemo_vfm.perf.memory import facts, memory

SMALL = [
    "model.width=64",
    "model.heads=4",
    "model.groups=2",
    "model.depth=2",
    "model.mlp_hidden=128",
    "model.vocab=512",
]
COMPILE, FUSED, NONE = "engine.compile=true", "optimizer.fused=true", "engine.recompute=none"
FP8 = "precision.fp8={_target_: nemo_vfm.core.fp8.Fp8, recipe: current}"


@dataclass(frozen=True)
class Variant:
    """Of the recipe's step.

    Args:
        name: of the row.
        overrides: of the recipe.
        microbatches: of the 16 texts.
        profiled: also tell the time by kind of kernel.
    """

    name: str
    overrides: tuple[str, ...] = ()
    microbatches: int = 4
    profiled: bool = False


VARIANTS = [
    Variant("as it stands: eager, blocks recomputed, 4 rows", profiled=True),
    Variant("fused AdamW, eager, blocks recomputed, 4 rows", (FUSED,)),
    Variant("fused AdamW, eager, nothing recomputed, 2 rows", (NONE, FUSED), 8),
    Variant("fused AdamW, compiled, blocks recomputed, 4 rows", (COMPILE, FUSED)),
    Variant("fused AdamW, compiled, nothing recomputed, 2 rows", (COMPILE, NONE, FUSED), 8, profiled=True),
    Variant("fused AdamW, compiled, nothing recomputed, 4 rows", (COMPILE, NONE, FUSED)),
    Variant("fused AdamW, compiled, nothing recomputed, 2 rows, FP8 current", (COMPILE, NONE, FUSED, FP8), 8),
]


def measure(variant: Variant, quick: bool) -> Figures:
    """Its step's time, MFU, memory and losses."""
    rows, length = (8, 32) if quick else (16, 4096)
    cfg = nemo_vfm.compose("llm/nemotron4_1b", [
        "data.sources.text.folder=none", "parallel.shard=1", f"parallel.microbatches={variant.microbatches}",
        *(SMALL if quick else []), *variant.overrides,
    ])  # fmt: skip
    job = nemo_vfm.build(cfg)
    build, optimizer = job.model, job.optimizer
    inputs = EngineInputs(partial(drawn, build), job.task, optimizer, job.precision, 0, job.parallel)
    runner = job.engine.start(inputs)
    runner.set_lr(0.1)
    words = torch.randint(runner.model.vocab, (rows, length + 1), generator=torch.Generator().manual_seed(0))
    batch = TokenBatch(0, tuple(map(str, range(rows))), torch.ones(rows), words[:, :-1].clone(), words[:, 1:].clone())
    steps = []

    def step() -> None:
        steps.append(runner.step([batch]))

    found = timed(step, 1 if quick else 3)
    every = [runner.model.ops(shapes) for shapes in steps[-1].shapes]
    found |= mfu(sum(map(training_flops, every)), found)
    causal = mfu(sum(training_flops(ops, "causal") for ops in every), found)
    found |= {"mfu_causal_pct": causal.get("mfu_pct"), "losses": [round(one.loss, 4) for one in steps]}
    with torch.device("meta"):
        known = facts(build(), {"tokens_BS": (1, length)}, optimizer)
    planned = memory(known, job.parallel, recompute=job.engine.recompute, fp8=job.precision.fp8,
                     microbatch_rows=rows // variant.microbatches)  # fmt: skip
    found |= {"planned_gb": round(planned.total / 1e9, 3), "fullest": planned.moment}
    return {**found, **(by_kind(step, 1 if quick else 2) if variant.profiled else {})}


def main() -> None:
    """All variants."""
    report = report_of(__doc__)
    for variant in VARIANTS:
        report.side(variant.name, partial(measure, variant, report.quick))


if __name__ == "__main__":
    main()
