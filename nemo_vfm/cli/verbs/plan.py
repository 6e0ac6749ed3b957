"""Plan a training on N GPUs: which layouts fit, how long a step takes under each, and why the others do not fit.

Nothing is run. The recipe's global batch stays as it is; the numbers are predictions
(docs/how-to/training/planning.md). The exit status is 2 if no layout fits.

Examples:
  nemo-vfm plan diffusion/dit_7b_8k --gpus 64                 # 64 H100 in DGX H100 machines
  nemo-vfm plan diffusion/dit_7b_8k --gpus 64 precision=fp8   # the same in FP8, and from which width that is quicker
  nemo-vfm plan diffusion/dit_7b_8k --gpus 64 --gpu a100 --network dgx_a100    # other GPUs, other links
  nemo-vfm plan diffusion/dit_7b_8k --gpus 64 --write conf/parallel/mine.yaml  # and the best layout, for parallel=mine
  nemo-vfm plan llm/nemotron4_15b --gpus 8 --serve --sequences 4               # can 8 GPUs serve it, and if not, why
"""

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from nemo_vfm.cli.arguments import NETWORK, add_recipe_arguments, add_sample_arguments
from nemo_vfm.cli.without_gc import without_collection

if TYPE_CHECKING:
    from nemo_vfm.cli.planning.plan_request import PlanRequest
    from nemo_vfm.perf.planner import Answer, Choice, Planner


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The recipe, the machine, and what the recipe does not say of its samples."""
    add_recipe_arguments(parser)
    parser.add_argument(
        "--gpus", metavar="N", type=int,
        help="number of GPUs to plan for; none is needed here. Or CHANGEs as `vfm-launch submit` takes them: "
             "cluster=NAME and nodes=N, which say the GPU and the network, too",
    )  # fmt: skip
    add_sample_arguments(parser)
    parser.add_argument("--network", metavar="NAME",
                        help="network between GPUs: conf/network/NAME, such as gb200_nvl72 or pcie_box (default "
                             f"{NETWORK})")  # fmt: skip
    parser.add_argument("--phase", metavar="NAME", help="phase to plan; default: the one written for N GPUs")
    parser.add_argument("--write", metavar="FILE", type=Path,
                        help="write the best layout as an ingredient, such as conf/parallel/mine.yaml")  # fmt: skip
    parser.add_argument("--serve", action="store_true",
                        help="report instead whether N GPUs can serve the language model, in FP8 and bf16")  # fmt: skip
    parser.add_argument("--sequences", metavar="N", type=int, default=1,
                        help="with --serve: sequences of --tokens at once (default: 1)")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.set_defaults(gpu=None)  # so that a cluster can say it


@without_collection()
def run(arguments: argparse.Namespace) -> int:
    """0 where some layout, or with --serve some precision, fits; 2 where none does, or the question is wrong."""
    from nemo_vfm.cli.planning.cluster_size import with_cluster
    from nemo_vfm.cli.planning.plan_request import parse_request
    from nemo_vfm.perf.planner import Planner

    arguments = with_cluster(arguments)
    request = parse_request(arguments)
    if arguments.serve:
        return _serve(arguments, request)
    planner = Planner(request.question)
    answer = planner.answer(arguments.gpus)
    own = _own(planner, request, answer)
    if arguments.json:
        from nemo_vfm.cli.planning.machine_answer import to_json

        text = json.dumps(to_json(request, answer, own), indent=1, ensure_ascii=False, allow_nan=False)
        sys.stdout.write(f"{text}\n")
    else:
        _tell(arguments, planner, request, answer, own)
    if arguments.write is not None and answer.ranked:
        _write(arguments, request, answer.ranked[0])
    return 0 if answer.ranked else 2


def _serve(arguments: argparse.Namespace, request: "PlanRequest") -> int:
    from nemo_vfm.cli.planning import serving_page
    from nemo_vfm.perf.serving import fits
    from nemo_vfm.runtime.terminal import Terminal

    asked = request.question, arguments.gpus, arguments.sequences
    found = serving_page.answers(*asked)
    if arguments.json:
        text = json.dumps(serving_page.to_json(*asked), indent=1, ensure_ascii=False, allow_nan=False)
        sys.stdout.write(f"{text}\n")
    else:
        paper = Terminal()
        for sentence in serving_page.sentences(*asked):
            paper.prose(sentence)
    gpu = request.question.machine.gpu
    return 0 if any(one is not None and fits(one, gpu) for one in found.values()) else 2


def _own(planner: "Planner", request: "PlanRequest", answer: "Answer") -> "Choice | None":
    """The recipe's own layout, where it is for so many GPUs and can be."""
    from nemo_vfm.core.errors import UserError

    if request.own.world != answer.gpus:
        return None
    try:
        return planner.choice(request.own, recompute=request.recompute)
    except UserError:
        return None


def _tell(
    arguments: argparse.Namespace, planner: "Planner", request: "PlanRequest", answer: "Answer", own: "Choice | None"
) -> None:
    from nemo_vfm.cli.planning.plan_page import tell, tell_remedies
    from nemo_vfm.perf.memory_remedies import remedies, smallest_number

    tell(request, answer, own, arguments.recipe)
    start = own or (None if answer.ranked else answer.nearest)
    if start is None:
        return
    if request.question.fits(start.memory):
        found, more = None, None
    else:
        found = remedies(request.question, start, answer)
        more = None if answer.ranked else smallest_number(planner, answer.gpus)
    tell_remedies(request, start, found, answer, more)


def _write(arguments: argparse.Namespace, request: "PlanRequest", best: "Choice") -> None:
    from nemo_vfm.cli.copy_recipe import write
    from nemo_vfm.cli.planning.layout_ingredient import ingredient_text
    from nemo_vfm.cli.planning.layout_words import layout

    of = f"{arguments.recipe} on {arguments.gpus} {request.question.machine.gpu.name}, {arguments.network}"
    text = ingredient_text(best, [f"{layout(best.plan)}: the fastest that `nemo-vfm plan` found for", f"{of}."])
    write({arguments.write: text})
    sys.stderr.write(f"{arguments.write}\n")
