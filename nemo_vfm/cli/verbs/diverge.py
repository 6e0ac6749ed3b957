"""Find where two layouts, precisions or recipes diverge: the first step, module and rank whose numbers differ.

Both are made small, as `parity` does, and take the same steps on the same samples. The outputs of all modules, the
loss, the gradients and the updated weights are compared, in this order. All are also compared with A on one device.

Examples:
  nemo-vfm diverge R --a parallel.shard=2 --b parallel.tensor=2    # one recipe with two different changes
  nemo-vfm diverge R --b precision=bf16                            # the recipe as it is with a changed one
  nemo-vfm diverge A B parallel.context=2                          # two recipes, with a change to both
  nemo-vfm diverge A B --steps 5 --tolerance 1e-3 --json           # more steps, another tolerance, for machines
"""

import argparse
import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from nemo_vfm.cli.arguments import add_allow_host, add_conf, add_trust
from nemo_vfm.core.errors import UserError

if TYPE_CHECKING:
    from nemo_vfm.cli.divergence_sides import DivergenceRequest
    from nemo_vfm.parallel.verify.divergence import DivergenceReport


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One recipe or two, and what is changed in each."""
    parser.add_argument("recipes", metavar="A [B] [CHANGE ...]", nargs="+",
                        help="one recipe or two; changes apply to both")  # fmt: skip
    for side in "ab":
        parser.add_argument(f"--{side}", metavar="CHANGE", action="extend", nargs="+", default=[],
                            help=f"changes of only {side.upper()}, such as parallel.tensor=2 or precision=bf16"
                            )  # fmt: skip
    parser.add_argument("--steps", metavar="N", type=int, default=2, help="training steps to compare (default 2)")
    parser.add_argument("--tolerance", metavar="X", type=float, default=None,
                        help="relative tolerance; default 1e-4, 5e-2 if a side runs in bf16, 3e-1 in FP8")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    add_conf(parser)
    add_trust(parser, "the recipe may name")
    add_allow_host(parser)
    parser.set_defaults(overlay=[])


def run(arguments: argparse.Namespace) -> int:
    """0 where they agree, 1 where they part."""
    if arguments.steps < 1 or (arguments.tolerance is not None and not arguments.tolerance > 0):
        raise UserError("--steps takes one or more, --tolerance a number above 0")
    from nemo_vfm.cli.divergence_sides import compare_sides, parse_request

    sides = parse_request(arguments)
    found = compare_sides(sides, arguments.steps)
    if arguments.json:
        record = {
            "a": str(sides.a), "b": str(sides.b), "tolerance": sides.tolerance,
            "parting": None if found.parting is None else asdict(found.parting),
            "largest": [{**asdict(one), "compared": found.compared[key]} for key, one in found.largest.items()],
            "unknown": list(found.unknown),
        }  # fmt: skip
        sys.stdout.write(json.dumps(record, indent=1) + "\n")
    else:
        _write(sides, found)
    return 0 if found.parting is None else 1


def _write(sides: "DivergenceRequest", report: "DivergenceReport") -> None:
    from nemo_vfm.runtime.terminal import Terminal

    paper = Terminal()
    paper.line(f"A  {sides.a}")
    paper.line(f"B  {sides.b}")
    paper.line()
    paper.line("  step  compared         number  largest difference", "bold")
    before = 0
    for (step, phase), one in report.largest.items():
        head = f"{step:>6}" if step != before else " " * 6
        where = f" in {one.name}" if one.size > 0 and phase != "loss" else ""
        beyond = not one.size <= sides.tolerance
        paper.line(f"{head}  {_NAMES[phase]:<15}{report.compared[step, phase]:>8}  {one.size:.0e}{where}",
                   "red" if beyond else "")  # fmt: skip
        before = step
    paper.line()
    if report.unknown:
        paper.prose(
            f"not compared, since their position in one device's output is unknown: {', '.join(report.unknown)}"
        )
    part = report.parting
    if part is None:
        paper.line(f"They agree: nothing differs by more than {sides.tolerance:g}, relative (L2).", "green")
        return
    what = {"forward": "the output of", "gradient": "the gradient of", "weight": "the weight", "loss": "the"}
    paper.prose(f"They diverge at step {part.step}, {_WHEN[part.phase]}, at {what[part.phase]} {part.name}: "
                f"{part.size:.2g} apart, {sides.tolerance:g} is allowed. Rank {part.rank} of {part.side} is furthest "
                f"from one device.")  # fmt: skip


_NAMES = {"forward": "outputs", "loss": "loss", "gradient": "gradients", "weight": "weights after"}
_WHEN = {"forward": "forward", "loss": "after the forward pass", "gradient": "backward", "weight": "in the update"}
