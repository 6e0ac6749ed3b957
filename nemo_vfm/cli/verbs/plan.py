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
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from nemo_vfm.cli.arguments import GPU, NETWORK, add_recipe_arguments, add_sample_arguments
from nemo_vfm.cli.without_gc import without_collection
from nemo_vfm.config import Roots, compose
from nemo_vfm.config.recipe_errors import Mark, SourceText
from nemo_vfm.config.tree import find, to_plain
from nemo_vfm.core.errors import UserError

if TYPE_CHECKING:
    from nemo_vfm.cli.planning.plan_request import PlanRequest
    from nemo_vfm.perf.planner import LayoutChoice, Planner, PlanResult

_SLOT, _SIZES = "cluster", ("nodes", "gpus")


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
    from nemo_vfm.cli.planning.plan_request import parse_request
    from nemo_vfm.perf.planner import Planner

    arguments = with_cluster(arguments)
    request = parse_request(arguments)
    if arguments.serve:
        return _serve(arguments, request)
    planner = Planner(request.question)
    answer = planner.answer(arguments.gpus)
    own = None  # the recipe's own layout, where it is for so many GPUs and can be
    if request.own.world == answer.gpus:
        with suppress(UserError):
            own = planner.choice(request.own, recompute=request.recompute)
    if arguments.json:
        from nemo_vfm.cli.planning.plan_formats import to_json

        text = json.dumps(to_json(request, answer, own), indent=1, ensure_ascii=False, allow_nan=False)
        sys.stdout.write(f"{text}\n")
    else:
        _tell(arguments, planner, request, answer, own)
    if arguments.write is not None and answer.ranked:
        from nemo_vfm.cli.copy_recipe import write
        from nemo_vfm.cli.planning.layout_words import layout
        from nemo_vfm.cli.planning.plan_formats import ingredient_text

        best, gpu = answer.ranked[0], request.question.machine.gpu.name
        head = f"{layout(best.plan)}: the fastest that `nemo-vfm plan` found for"
        of = f"{arguments.recipe} on {arguments.gpus} {gpu}, {arguments.network}."
        write({arguments.write: ingredient_text(best, [head, of])})
        sys.stderr.write(f"{arguments.write}\n")
    return 0 if answer.ranked else 2


def _serve(arguments: argparse.Namespace, request: "PlanRequest") -> int:
    from nemo_vfm.cli.planning.plan_page import serving_answers, serving_sentences
    from nemo_vfm.perf.serving import fits
    from nemo_vfm.runtime.terminal import Terminal

    asked = request.question, arguments.gpus, arguments.sequences
    found, gpu = serving_answers(*asked), request.question.machine.gpu
    if arguments.json:
        memory = {name: None if one is None else asdict(one) | {"total": one.total, "fits": fits(one, gpu)}
                  for name, one in found.items()}  # fmt: skip
        record = {
            "gpus": arguments.gpus, "gpu": asdict(gpu) | {"usable_bytes": round(gpu.usable_bytes)},
            "sequences": arguments.sequences, "tokens": request.question.work.tokens,
            "parameters": request.question.work.parameters, "serving": memory,
        }  # fmt: skip
        sys.stdout.write(f"{json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False)}\n")
    else:
        paper = Terminal()
        for sentence in serving_sentences(*asked):
            paper.prose(sentence)
    return 0 if any(one is not None and fits(one, gpu) for one in found.values()) else 2


def _tell(
    arguments: argparse.Namespace,
    planner: "Planner",
    request: "PlanRequest",
    answer: "PlanResult",
    own: "LayoutChoice | None",
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


def with_cluster(arguments: argparse.Namespace) -> argparse.Namespace:
    """The arguments of `plan`, in which changes name no cluster any more: they say how many GPUs of which kind.

    An option wins over a cluster; it is None where it is not given.
    """
    ours = [word for word in arguments.overrides if _path(word).partition(".")[0] in (_SLOT, *_SIZES)]
    sizes = {_path(word): word for word in ours if _path(word) in _SIZES}
    names = [word for word in ours if _path(word) == _SLOT]
    gpu: object = None
    per_node: object = None
    networks: list[str] = []
    if names:  # what the cluster's file says, and what changes it
        roots, cluster = Roots.standard(arguments.conf), names[-1].partition("=")[2]
        file = roots.require_ingredient(_SLOT, cluster, Mark(SourceText.from_word(names[-1]), 1, len(_SLOT) + 2))
        changes = [word.replace(f"{_SLOT}.", "", 1) for word in ours if _path(word).startswith(f"{_SLOT}.")]
        root = compose(file, changes, arguments.conf).root
        found = [find(root, key) for key in ("gpu", "gpus_per_node", "segment")]
        gpu, per_node, segment = (None if node is None else to_plain(node) for node in found)
        if not isinstance(per_node, int) or per_node < 1 or not isinstance(gpu, str):
            raise UserError(f"cluster={cluster} names no GPUs, so there is nothing to plan for; choose another, or add "
                            f"cluster.gpu=h100 cluster.gpus_per_node=8")  # fmt: skip
        domain = per_node * (segment if isinstance(segment, int) else 1)
        networks = [one for one in (cluster, f"{gpu}_nvl{domain}") if one in roots.choices("network")]
    given = dict(vars(arguments), overrides=[word for word in arguments.overrides if word not in ours])
    if arguments.gpus is None:
        if not sizes or ("nodes" in sizes and per_node is None):
            raise UserError("it is not said for how many GPUs: give --gpus N, or cluster=NAME and nodes=N as "
                            "`vfm-launch submit` takes them")  # fmt: skip
        if len(sizes) > 1:
            raise UserError(f"{' and '.join(sizes.values())} are two sizes; give one, and the other follows")
        ((name, word),) = sizes.items()
        number = word.partition("=")[2]
        if not number.isdecimal() or int(number) < 1:
            raise UserError(f"{name} must be a whole number, one or more, got {word}")
        given["gpus"] = int(number) * (per_node if name == "nodes" and isinstance(per_node, int) else 1)
    given["gpu"] = arguments.gpu or gpu or GPU
    given["network"] = arguments.network or next(iter(networks), NETWORK)
    return argparse.Namespace(**given)


def _path(word: str) -> str:
    return word.removeprefix("~").partition("=")[0]
