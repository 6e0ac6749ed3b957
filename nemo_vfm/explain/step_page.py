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
    report = tell(run, step, trust=trust, allow_host=allow_host, losses=losses)
    if as_json:
        text = json.dumps(to_json(report), indent=1, ensure_ascii=False)
        sys.stdout.write(UNSEEN.sub(lambda found: json.dumps(found[0])[1:-1], text) + "\n")
    else:
        write(Terminal(), report)
    return 0


def write(paper: Terminal, report: StepReport) -> None:
    """The whole page, as plain text."""
    paper.line(f"{printable(report.run, 200)}, step {report.step:,}", "bold")
    shapes = ", ".join(
        f"{name.partition('_')[0]} {'x'.join(map(str, shape[1:]))}" for name, shape in report.shapes.items()
    )
    epoch = "" if report.epoch is None else f"epoch {int(report.epoch)}, "
    paper.prose(f"{epoch}{len(report.samples)} samples: {shapes}", 2)
    paper.prose(_recorded(report), 2)
    if report.weights:
        paper.prose(_computed(report), 2)
    paper.line()
    names = list(report.samples[0].numbers) if report.samples else []
    head = ["sample", "rank", *names, "weight", *(["loss", "share"] if report.weights else []), "caption"]
    rows = [tuple(head), *(_row(one, names, bool(report.weights)) for one in report.samples)]
    paper.table([(f"  {first}", *rest) for first, *rest in rows], {"sample": "bold"})


def _recorded(report: StepReport) -> str:
    line = report.recorded
    if not line:
        return "metrics.jsonl has no line for it: it was not reached yet, or its metrics were not stored"
    if line.get("skipped"):
        return "skipped as a whole (callbacks.skip.steps): no weights changed"
    parts = [f"{name.replace('_', ' ')} {line[name]:.6g}" for name in ("loss", "grad_norm", "lr") if name in line]
    return f"recorded: {', '.join(parts)}"


def _computed(report: StepReport) -> str:
    mean = "none counts" if report.loss is None else f"mean {report.loss:.6g}"
    if report.exact:
        return f"losses recomputed from {report.weights}, which the step started from: {mean}"
    return (f"losses recomputed from {report.weights}, the newest weights before the step, not those it started with: "
            f"{mean}")  # fmt: skip


def _row(one: SampleReport, names: list[str], losses: bool) -> tuple[str, ...]:
    key = printable(one.key, 200)
    key = key if len(key) <= _LONGEST_KEY else f"{key[: _LONGEST_KEY - 3]}..."
    weight = f"{one.weight:g}" + (" (skip)" if one.left_out else "")
    found = [key, str(one.rank), *(f"{one.numbers[name]:.4g}" for name in names), weight]
    if losses:
        found += ["" if one.loss is None else f"{one.loss:.4g}", "" if one.share is None else f"{one.share:.0%}"]
    return *found, printable(one.caption, 400)
