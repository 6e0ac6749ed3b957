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
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from nemo_vfm.cli.arguments import add_recipe_arguments
from nemo_vfm.core.errors import UserError
from nemo_vfm.runtime.terminal import Terminal

if TYPE_CHECKING:
    from torch import nn

    from nemo_vfm.parallel.plan.layout_cases import LayoutCase
    from nemo_vfm.parallel.verify.parity import ParityRow
    from nemo_vfm.parallel.verify.tiny_training import TinyTraining


_MOST = 8  # ranks: a sample for each
_STYLES = {"equal": "green", "seen": "green", "refused": "yellow"}


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
    from nemo_vfm.cli.recipe_job import tiny_training
    from nemo_vfm.parallel.verify.parity import GRADIENT, LOSS
    from nemo_vfm.parallel.verify.tiny_training import SAMPLES

    ready, model, _ = tiny_training(arguments)
    layouts = [one for count in ranks for one in _choose_layouts(arguments, count, model, ready.takes_packed)]
    found = _rows(ready, model, layouts, ranks)
    if not arguments.json:
        width = max([len(str(layout)) for layout in layouts] + [20])
        fp8 = ready.precision.fp8
        numbers = "fp32" if fp8 is None else f"FP8 (recipe {fp8.recipe}) and float64"
        count = sum(parameter.numel() for parameter in model.parameters())
        paper = Terminal()
        paper.line(f"{arguments.recipe}, made small", "bold")
        paper.prose(f"{type(model).__name__} of {count:,} parameters, two steps of {SAMPLES} samples in {numbers}, "
                    f"each rank with its own. Each layout against one device: losses may differ by {LOSS:g}, each "
                    f"parameter's gradient by {GRADIENT:g}, relative (L2).", 2)  # fmt: skip
        paper.line()
        paper.line(f"  ranks  {'layout':<{width}}  verdict       loss  gradient  of", "bold")
        rows = _write_rows(found, width)
    else:
        began, rows = time.monotonic(), list(found)
        record = {
            "recipe": arguments.recipe, "model": type(model).__name__,
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "tolerance": {"loss": LOSS, "gradient": GRADIENT},
            "rows": [{**asdict(row), "layout": str(row.layout), "degrees": dict(row.layout.degrees)} for row in rows],
            "equal": all(row.is_good for row in rows), "seconds": round(time.monotonic() - began, 1),
        }  # fmt: skip
        sys.stdout.write(json.dumps(record, indent=1) + "\n")
    return 0 if all(row.is_good for row in rows) else 1


def _ranks(text: str) -> list[int]:
    try:
        found = sorted({int(word) for word in text.split(",")})
    except ValueError:
        found = []
    if not found or not 1 <= found[0] <= found[-1] <= _MOST:
        raise UserError(f"--ranks takes numbers from 1 to {_MOST}, such as 1,2,4; got {text!r}")
    return found


def _choose_layouts(arguments: argparse.Namespace, ranks: int, model: "nn.Module", packed: bool) -> "list[LayoutCase]":
    from nemo_vfm.parallel.plan.layout_cases import LayoutCase, all_layouts, selection
    from nemo_vfm.parallel.verify.parity import blocks
    from nemo_vfm.parallel.verify.tiny_training import SAMPLES

    every = all_layouts(ranks, samples=SAMPLES, stages=blocks(model))
    padded, packs = ([one for one in every if one.packed is which] for which in (False, True))
    if not arguments.all:  # a model that refuses packed samples must not lose what else these rows would show
        padded = selection(padded, together=1 if arguments.quick else 2)
        packs = selection(packs, together=1)[: 1 if arguments.quick else None]
    return [*sorted(padded, key=LayoutCase.order), *(sorted(packs, key=LayoutCase.order) if packed else [])]


def _rows(
    ready: "TinyTraining", model: "nn.Module", layouts: "Sequence[LayoutCase]", ranks: "Sequence[int]"
) -> "Iterator[ParityRow]":
    from nemo_vfm.parallel.plan.layout_cases import LayoutCase
    from nemo_vfm.parallel.verify import parity
    from nemo_vfm.parallel.verify.rank_pool import Pool

    with Pool(ranks[-1], parity.silence_warnings) as pool:
        parity.one_device(pool, ready, ranks[-1])
        if not ready.takes_packed:
            yield parity.ParityRow(LayoutCase({}, packed=True), 1, "refused", reason=parity.NOT_PACKED)
        for layout in layouts:
            yield parity.row(pool, ready, layout)
        for count in ranks:
            if count > 1:
                yield parity.control(pool, ready, count, is_cut=parity.is_cut(model))


def _write_rows(found: "Iterator[ParityRow]", width: int) -> "list[ParityRow]":
    """Each row as it is measured, a line between numbers of ranks; then the verdict of all, and each reason in full."""
    paper, ranks, rows, began = Terminal(), 0, list["ParityRow"](), time.monotonic()
    for row in found:
        rows.append(row)
        if row.left_out and ranks:
            paper.line()
            paper.line(f"  control, {row.left_out}: it must be detected", "bold")
            ranks = 0
        elif not row.left_out and row.ranks != ranks:
            if ranks:
                paper.line()
            ranks = row.ranks
        head = f"  {row.ranks:>5}  {row.layout!s:<{width}}  {row.verdict:<8}  "
        if row.loss is None or row.gradient is None:
            text = head + _cut(row.reason, max(40, paper.width - len(head)), "")
        else:
            text, name = f"{head}{_figure(row.loss):>8}  {_figure(row.gradient):>8}  ", row.parameter
            name = name.removesuffix(".weight")
            text += _cut(name, max(24, paper.width - len(text)), name.rpartition(".")[2])
        paper.line(text, _STYLES.get(row.verdict, "red"))
    counts = Counter(row.verdict for row in rows if not row.left_out)
    controls = [row for row in rows if row.left_out]
    verdicts = [f"{count} {verdict}" for verdict, count in sorted(counts.items())]
    if controls:
        verdicts.append(f"{sum(row.is_good for row in controls)} of {len(controls)} controls detected")
    paper.line()
    for reason, count in Counter(row.reason for row in rows if row.reason).items():
        paper.prose(f"{count} x {reason}", 2)
    good, seconds = all(row.is_good for row in rows), time.monotonic() - began
    paper.line(f"{'All as expected' if good else 'NOT as expected'}: {', '.join(verdicts)} ({seconds:.0f} s)",
               "green" if good else "red")  # fmt: skip
    return rows


def _figure(value: float) -> str:
    return f"{value:.0e}" if 0 < value < 0.01 else f"{value:.2g}"


def _cut(text: str, width: int, last: str) -> str:
    """A text cut to a width before its last words."""
    return text if len(text) <= width else f"{text[: max(8, width - 3 - len(last))]}...{last}"
