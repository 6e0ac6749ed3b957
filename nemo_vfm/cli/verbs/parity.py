"""Prove on this machine that a recipe's training gives the same losses and gradients on any layout of devices.

The recipe is made small (its model keeps its class). Under each layout, processes of this machine take two steps, with
synthetic samples that differ on every rank. The control leaves a sum out, and must be detected.

A layout that the model does not support is listed as refused, with the reason. The exit status is 1 if a layout differs
or fails, or a control is not detected (docs/how-to/training/several_devices.md).

Examples:
  nemo-vfm parity diffusion/dit_7b_8k                    # on 1, 2 and 4 processes: every pair of choices at least once
  nemo-vfm parity diffusion/dit_7b_8k --ranks 2,8        # on other numbers of processes
  nemo-vfm parity diffusion/dit_7b_8k --quick            # each choice once
"""

import argparse
import json
import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

from nemo_vfm.cli.arguments import add_recipe_arguments
from nemo_vfm.core.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import nn

    from nemo_vfm.parallel.plan.layout_cases import Layout
    from nemo_vfm.parallel.verify.parity import Row
    from nemo_vfm.parallel.verify.tiny_training import TinyTraining

_MOST = 8  # ranks: a sample for each


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The recipe, and how much is tried."""
    add_recipe_arguments(parser)
    parser.add_argument("--ranks", metavar="N,N", default="1,2,4", help="numbers of processes (default 1,2,4)")
    much = parser.add_mutually_exclusive_group()
    much.add_argument("--quick", action="store_true", help="cover each choice once instead of each pair of choices")
    much.add_argument("--all", action="store_true", help="try every layout")
    parser.add_argument("--json", action="store_true", help="print the table as JSON at the end")


def run(arguments: argparse.Namespace) -> int:
    """0 where every layout is equal or refused with a reason, and every control was seen; 1 else."""
    ranks = _ranks(arguments.ranks)
    from nemo_vfm.cli.tiny_recipe import rehearsed

    ready, model, _ = rehearsed(arguments)
    layouts = [one for count in ranks for one in _chosen(arguments, count, model, ready.takes_packed)]
    from nemo_vfm.cli.parity_table import Table

    table, began = None if arguments.json else Table(layouts), time.monotonic()
    if table is not None:
        table.begin(arguments.recipe, model, ready.precision.fp8)
    rows = []
    for row in _rows(ready, model, layouts, ranks):
        rows.append(row)
        if table is not None:
            table.add(row)
    seconds = time.monotonic() - began
    if table is None:
        sys.stdout.write(json.dumps(_record(arguments.recipe, model, rows, seconds), indent=1) + "\n")
    else:
        table.end(rows, seconds)
    return 0 if all(row.is_good for row in rows) else 1


def _ranks(text: str) -> list[int]:
    try:
        found = sorted({int(word) for word in text.split(",")})
    except ValueError:
        found = []
    if not found or not 1 <= found[0] <= found[-1] <= _MOST:
        raise UserError(f"--ranks takes numbers from 1 to {_MOST}, such as 1,2,4; got {text!r}")
    return found


def _chosen(arguments: argparse.Namespace, ranks: int, model: "nn.Module", packed: bool) -> "list[Layout]":
    from nemo_vfm.parallel.plan.layout_cases import Layout, all_layouts, selection
    from nemo_vfm.parallel.verify.parity import blocks
    from nemo_vfm.parallel.verify.tiny_training import SAMPLES

    every = all_layouts(ranks, samples=SAMPLES, stages=blocks(model))
    padded, packs = ([one for one in every if one.packed is which] for which in (False, True))
    if not arguments.all:  # a model that refuses packed samples must not lose what else these rows would show
        padded = selection(padded, together=1 if arguments.quick else 2)
        packs = selection(packs, together=1)[: 1 if arguments.quick else None]
    return [*sorted(padded, key=Layout.order), *(sorted(packs, key=Layout.order) if packed else [])]


def _rows(
    ready: "TinyTraining", model: "nn.Module", layouts: "Sequence[Layout]", ranks: "Sequence[int]"
) -> "Iterator[Row]":
    from nemo_vfm.parallel.plan.layout_cases import Layout
    from nemo_vfm.parallel.verify import parity
    from nemo_vfm.parallel.verify.rank_pool import Pool

    with Pool(ranks[-1], parity.quiet) as pool:
        parity.one_device(pool, ready, ranks[-1])
        if not ready.takes_packed:
            yield parity.Row(Layout({}, packed=True), 1, "refused", reason=parity.NOT_PACKED)
        for layout in layouts:
            yield parity.row(pool, ready, layout)
        for count in ranks:
            if count > 1:
                yield parity.control(pool, ready, count, is_cut=parity.is_cut(model))


def _record(recipe: str, model: "nn.Module", rows: "Sequence[Row]", seconds: float) -> dict[str, object]:
    from nemo_vfm.parallel.verify.parity import GRADIENT, LOSS

    return {
        "recipe": recipe,
        "model": type(model).__name__,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "tolerance": {"loss": LOSS, "gradient": GRADIENT},
        "rows": [{**asdict(row), "layout": str(row.layout), "degrees": dict(row.layout.degrees)} for row in rows],
        "equal": all(row.is_good for row in rows),
        "seconds": round(seconds, 1),
    }
