"""Compares both engines with one device: losses and gradients of small recipes, layout by layout.

    python benchmarks/engines.py [--quick] [--json FILE]

Recipes of a DiT, an ST-DiT and a GPT are made small, as `nemo-vfm parity` makes them. On 1, 2 and 4 processes each
engine takes three steps under layouts in which every two choices meet; `max_loss_difference` is the largest relative
difference from one device's loss by plain PyTorch. The controls leave a sum out and must be seen. Megatron-Core runs on
a CPU by the stand-ins for CUDA that the tests use. What a model or Megatron-Core refuses is no row. It fails where a
row differs or a control is not seen.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from importlib.metadata import version
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # the checkout's own helpers, wherever this is called

from nemo_vfm.cli.recipe_job import tiny_training  # noqa: E402
from nemo_vfm.cli.verbs.parity import add_arguments  # noqa: E402
from nemo_vfm.parallel.plan.layout_cases import LayoutCase, all_layouts, selection  # noqa: E402
from nemo_vfm.parallel.verify import parity  # noqa: E402
from nemo_vfm.parallel.verify.rank_pool import Pool  # noqa: E402
from nemo_vfm.parallel.verify.tiny_training import SAMPLES, TinyTraining  # noqa: E402
from tests.support.cpu_megatron import megatron_on_cpu  # noqa: E402

RECIPES = {
    "DiT": "recipes/diffusion/train_small.yaml",
    "ST-DiT": "recipes/diffusion/st_dit_7b_35k.yaml",
    "GPT": "recipes/llm/nemotron4_1b.yaml",
}
STEPS = 3
_KEPT: list[AbstractContextManager[None]] = []


def small(recipe: str, engine: str) -> tuple[TinyTraining, torch.nn.Module]:
    """A recipe's training under one engine, and its model without memory."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    ready, model, _ = tiny_training(parser.parse_args([str(ROOT / recipe), f"engine={engine}"]))
    return ready, model


def layouts(model: torch.nn.Module, ready: TinyTraining, *, quick: bool) -> list[LayoutCase]:
    """Those that are tried: with --quick each choice once, on two processes."""
    found = []
    for ranks in (2,) if quick else (1, 2, 4):
        every = [
            one
            for one in all_layouts(ranks, samples=SAMPLES, stages=parity.blocks(model))
            if one.degrees.get("schedule") != "zero_bubble"
        ]
        padded, packs = ([one for one in every if one.packed is which] for which in (False, True))
        found += selection(padded, together=1 if quick else 2)
        if ready.takes_packed:
            found += selection(packs, together=1)[: 1 if quick else None]
    return found


def on_cpu(rank: int) -> None:
    """Megatron-Core's stand-ins, for the whole life of a process."""
    parity.silence_warnings(rank)
    _KEPT.append(megatron_on_cpu())  # a context that nobody holds would end at once
    _KEPT[-1].__enter__()


def rows(engine: str, *, quick: bool) -> Iterator[tuple[str, parity.ParityRow]]:
    """Each layout of each model, then the control."""
    with Pool(2 if quick else 4, on_cpu if engine == "megatron" else parity.silence_warnings) as pool:
        for name, recipe in RECIPES.items():
            ready, model = small(recipe, engine)
            no_packs = False
            for layout in layouts(model, ready, quick=quick):
                if layout.packed and no_packs:
                    continue  # the stages of a pipeline would wait in vain for the one that refuses
                yield name, (row := parity.row(pool, ready, layout, STEPS))
                no_packs |= layout.packed and row.verdict == "refused"
            yield name, parity.control(pool, ready, 2, is_cut=parity.is_cut(model))


def main() -> int:
    """Print a line a row, then the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="each choice once, on two processes")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    print(f"torch {torch.__version__}, megatron-core {version('megatron-core')}, {STEPS} steps, fp32, gloo on a CPU")
    print("| engine | model | ranks | layout | verdict | loss | gradient |\n|---|---|---|---|---|---|---|")
    measured, bad = list[parity.ParityRow](), 0
    for engine in ("torch", "megatron"):
        for model, row in rows(engine, quick=given.quick):
            control = f" ({row.left_out})" if row.left_out else ""
            numbers = " | ".join("" if one is None else f"{one:.1e}" for one in (row.loss, row.gradient))
            why = f": {row.reason}" if row.reason else ""
            print(f"| {engine} | {model} | {row.ranks} | {row.layout}{control} | {row.verdict}{why} | {numbers} |",
                  flush=True)  # fmt: skip
            bad += not row.is_good
            measured += [row] if row.verdict in ("equal", "differs", "failed") else []
    told = {
        "rows": len(measured),
        "rows_equal": sum(row.verdict == "equal" for row in measured),
        "max_loss_difference": max(row.loss for row in measured if row.loss is not None),
    }
    print(" ".join(f"{name} {figure:.3g}" for name, figure in told.items()))
    if given.json:
        given.json.write_text(json.dumps(told))
    return int(bad > 0)


if __name__ == "__main__":
    raise SystemExit(main())
