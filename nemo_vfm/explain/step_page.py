# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Prints what is known of a training step."""

import json
import sys
from pathlib import Path

from nemo_vfm.config.recipe_errors import UNSEEN, printable
from nemo_vfm.explain.step_report import SampleReport, StepReport, tell, to_json
from nemo_vfm.runtime.terminal import Terminal

_LONGEST_KEY = 34


def tell_of_step(run: Path, step: int, *, trust: list[str], allow_host: list[str], as_json: bool, losses: bool) -> int:
    """Print it.

    Raises:
        UserError, DataError: see `tell`.
    """
    told = tell(run, step, trust=trust, allow_host=allow_host, losses=losses)
    if as_json:
        text = json.dumps(to_json(told), indent=1, ensure_ascii=False)
        sys.stdout.write(UNSEEN.sub(lambda found: json.dumps(found[0])[1:-1], text) + "\n")
    else:
        write(Terminal(), told)
    return 0


def write(paper: Terminal, told: StepReport) -> None:
    """The whole page, as plain text."""
    paper.line(f"{printable(told.run, 200)}, step {told.step:,}", "bold")
    shapes = ", ".join(
        f"{name.partition('_')[0]} {'x'.join(map(str, shape[1:]))}" for name, shape in told.shapes.items()
    )
    epoch = "" if told.epoch is None else f"epoch {int(told.epoch)}, "
    paper.prose(f"{epoch}{len(told.samples)} samples: {shapes}", 2)
    paper.prose(_recorded(told), 2)
    if told.weights:
        paper.prose(_computed(told), 2)
    paper.line()
    names = list(told.samples[0].numbers) if told.samples else []
    head = ["sample", "rank", *names, "weight", *(["loss", "share"] if told.weights else []), "caption"]
    rows = [tuple(head), *(_row(one, names, bool(told.weights)) for one in told.samples)]
    paper.table([(f"  {first}", *rest) for first, *rest in rows], {"sample": "bold"})


def _recorded(told: StepReport) -> str:
    line = told.recorded
    if not line:
        return "metrics.jsonl has no line of it: it was not reached yet, or its metrics were not kept"
    if line.get("skipped"):
        return "skipped as a whole (skip.steps): no weights changed"
    said = [f"{name.replace('_', ' ')} {line[name]:.6g}" for name in ("loss", "grad_norm", "lr") if name in line]
    return f"recorded: {', '.join(said)}"


def _computed(told: StepReport) -> str:
    mean = "none counts" if told.loss is None else f"mean {told.loss:.6g}"
    if told.exact:
        return f"losses computed anew from {told.weights}, which the step began with: {mean}"
    return (f"losses computed anew from {told.weights}, the nearest before the step and not those that it began with: "
            f"{mean}")  # fmt: skip


def _row(one: SampleReport, names: list[str], losses: bool) -> tuple[str, ...]:
    key = printable(one.key, 200)
    key = key if len(key) <= _LONGEST_KEY else f"{key[: _LONGEST_KEY - 3]}..."
    weight = f"{one.weight:g}" + (" (skip)" if one.left_out else "")
    found = [key, str(one.rank), *(f"{one.numbers[name]:.4g}" for name in names), weight]
    if losses:
        found += ["" if one.loss is None else f"{one.loss:.4g}", "" if one.share is None else f"{one.share:.0%}"]
    return *found, printable(one.caption, 400)
