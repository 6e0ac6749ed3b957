"""Measure a recipe on this machine: time a step, throughput, utilisation, memory, start-up.

The training of the recipe is run as `run` runs it, on the devices that it asks for, but for checkpoints, validation and
callbacks; nothing is kept. Of a workflow only the step that trains is measured, and what other steps still need does
not matter. With `data=mock` it reads no data: samples of the recipe's shapes are made up. Of a recipe that samples
videos or generates texts, a step is one call of the network; a checkpoint need not be there.

Examples:
  nemo-vfm bench llm/nemotron4_1b data=mock --gpus 1        # one GPU, its share of each batch
  nemo-vfm bench diffusion/dit_7b_8k data=mock --profile    # and what the time of a step goes to
  nemo-vfm bench llm/stories data=mock --step write         # not how it trains but how it generates texts
  nemo-vfm bench llm/stories data=mock --against engine.compile=true    # two sides, in turns: A B A B
  nemo-vfm bench diffusion/train_small data=mock --overlay smoke --json bench.json
"""

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from nemo_vfm.cli.arguments import GPU, NETWORK, add_recipe_arguments
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.preemption import DEFAULT, listen_for_signals
from nemo_vfm.core.ranks import SILENCE_S, TIMEOUT_S

if TYPE_CHECKING:
    from nemo_vfm.cli.benching.bench_job import BenchJob
    from nemo_vfm.config import ComposedRecipe
    from nemo_vfm.core.types.job import Job
    from nemo_vfm.core.types.json_value import Json
    from nemo_vfm.runtime.recipe_run import RunEnding

_ROUNDS = 2  # of two sides: A B A B
_STAND_IN = "given-later"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The recipe, what is measured of it, and where the figures go."""
    add_recipe_arguments(parser)
    parser.add_argument("--step", metavar="NAME", help="the step of a workflow to measure, where several train")
    parser.add_argument("--steps", metavar="N", type=int, default=10, help="steps that are timed (default 10)")
    parser.add_argument("--warm-up", metavar="N", type=int, default=3,
                        help="steps before them, in which kernels are chosen and compiled (default 3)")  # fmt: skip
    parser.add_argument("--profile", action="store_true", help="divide the time of a step by kinds of work")
    parser.add_argument("--gpus", metavar="1", type=int, choices=(1,),
                        help="measure on one device its share of each batch, whatever the layout is")  # fmt: skip
    parser.add_argument("--against", metavar="CHANGE", nargs="+", default=[],
                        help="measure a second side with these changes, in turns with the first")  # fmt: skip
    parser.add_argument("--latents", metavar="T,H,W",
                        help="latent frames, rows and columns of made-up samples, if the recipe does not set them"
                        )  # fmt: skip
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the figures to FILE as JSON")
    parser.add_argument("--report", metavar="FILE", type=Path, help="write the figures to FILE as a page")
    # What the ranks that a bench starts are told besides.
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--only", help=argparse.SUPPRESS)
    parser.add_argument("--preempt", action="append", default=[], help=argparse.SUPPRESS)
    parser.add_argument("--rank-timeout", type=float, default=TIMEOUT_S, help=argparse.SUPPRESS)
    parser.add_argument("--rank-silence", type=float, default=SILENCE_S, help=argparse.SUPPRESS)


def run(arguments: argparse.Namespace) -> int:
    """0 where it was measured."""
    if min(arguments.steps, arguments.warm_up) < 1:
        raise UserError(f"--steps ({arguments.steps}) and --warm-up ({arguments.warm_up}) must be at least 1")
    if arguments.against:
        return _in_turns(arguments)
    own = arguments.folder is None
    folder = Path(tempfile.mkdtemp(prefix="nemo-vfm-bench-")) if own else arguments.folder
    try:
        with listen_for_signals(DEFAULT):
            status, found = _measure(arguments, folder)
        if status or not own:
            return status
        from nemo_vfm.cli.benching.bench_job import FIGURES
        from nemo_vfm.cli.benching.bench_table import show_figures
        from nemo_vfm.core.storage.files import write_json

        show_figures(found, arguments.recipe)
        _write(arguments.json, found)
        if arguments.report is not None:
            from nemo_vfm.report import page

            write_json(folder / FIGURES, found)  # with what plan says
            shutil.copyfile(page.write(folder), arguments.report)
        return 0
    finally:
        if own:
            shutil.rmtree(folder, ignore_errors=True)


def _measure(arguments: argparse.Namespace, folder: Path) -> "tuple[int, Json]":
    """The exit status, and the figures with the bytes that `plan` says."""
    from nemo_vfm.cli.benching.bench_job import FIGURES, BenchJob, BenchSettings
    from nemo_vfm.core.storage.files import read_json
    from nemo_vfm.runtime.recipe_run import RecipeRun, RunOptions

    composed, step = _prepared(arguments, folder)
    asked = BenchSettings(step=step, steps=arguments.steps, warm_up=arguments.warm_up, profiled=arguments.profile,
                          alone=arguments.gpus == 1)  # fmt: skip
    options = RunOptions(trust=arguments.trust, allow_host=arguments.allow_host, only=step[0] if step else None,
                         preempt=arguments.preempt, rank_timeout=arguments.rank_timeout,
                         rank_silence=arguments.rank_silence)  # fmt: skip
    jobs: list[BenchJob] = []

    def wrapped(whole: "Job") -> BenchJob:
        jobs.append(BenchJob(whole, asked))
        return jobs[0]

    words = [arguments.recipe, *arguments.overrides, f"--folder={folder}", f"--steps={asked.steps}",
             f"--warm-up={asked.warm_up}", *(["--profile"] if asked.profiled else [])]  # fmt: skip
    words += [f"--{name}={value}" for name in ("conf", "overlay") for value in vars(arguments)[name]]
    words += [f"--{name}={value}" for name in ("step", "latents") if (value := vars(arguments)[name]) is not None]
    status = RecipeRun(composed, words, options, _show, verb="bench", folder=folder, wrap=wrapped).run()
    if status or arguments.folder is not None:
        return status, None
    found = read_json(folder / FIGURES)
    return status, {**found, "planned_bytes": _planned(arguments, jobs[0], composed, found["inputs"])}


def _prepared(arguments: argparse.Namespace, folder: Path) -> "tuple[ComposedRecipe, tuple[str, ...]]":
    """The recipe with stand-ins for what other steps still need, and the names that lead to the training.

    Made-up data, and what samples by itself, need nothing of the recipe's run folder, and a random base is written to
    the folder that is not kept.
    """
    from nemo_vfm.cli.benching.bench_job import MEASURED, TRAIN, step_to_measure
    from nemo_vfm.cli.planning.plan_request import latents_said
    from nemo_vfm.config import RecipeError, check, trust_list
    from nemo_vfm.config.compose import is_mocked
    from nemo_vfm.config.tree import Map, find, walk
    from nemo_vfm.runtime.command import composed_recipe
    from nemo_vfm.runtime.user_permissions import permissions

    composed = composed_recipe(arguments)
    names = {tuple(path.split(".")[1::2]): node for path, node in walk(composed.root)
             if isinstance(node, Map) and node.target() in MEASURED
             and (not path or path.startswith("steps."))}  # fmt: skip
    kinds = {name: str(node.target()) for name, node in names.items() if isinstance(node, Map)}
    step = step_to_measure(kinds, arguments.step, arguments.recipe)
    place = "".join(f"steps.{name}." for name in step)
    problems = check(composed, trust_list(arguments.trust), permissions(arguments.allow_host, composed.path))
    # A checkpoint need not be there: weights as they are drawn take as long.
    drawn = [one for one in problems if one.path == f"{place}checkpoint" and kinds[step] != TRAIN]
    problems = [one for one in problems if one not in drawn]
    if wrong := [one for one in problems if one.kind != "missing" or one.path.startswith(place)]:
        raise RecipeError(wrong)
    given = [f"{one.path}={f'[{_STAND_IN}]' if '(a list' in one.message else _STAND_IN}" for one in problems]
    given += [f"{one.path}=null" for one in drawn]
    mocked = is_mocked(names[step])
    given += [f"run_dir={folder}"] if mocked or (kinds[step] != TRAIN and not step) else []
    if mocked and find(composed.root, f"{place}mock_data.latents") is None:
        # What the recipe's first lines say is not meant for a model that an overlay has made small.
        has_own = arguments.latents is not None or not arguments.overlay
        sizes = latents_said(composed.path, arguments.latents) if has_own else None
        given += [f"{place}mock_data.latents=[[{','.join(map(str, sizes))}]]"] if sizes else []
    return (composed_recipe(arguments, given) if given else composed), step


def _planned(
    arguments: argparse.Namespace, job: "BenchJob", composed: "ComposedRecipe", inputs: Mapping[str, Sequence[int]]
) -> int | None:
    """Bytes of tensors that `plan` says of the layout and the inputs that were measured; None where it cannot say."""
    from nemo_vfm.cli.planning.plan_request import request_of
    from nemo_vfm.core.device import device
    from nemo_vfm.parallel.plan.plan import ParallelPlan
    from nemo_vfm.perf.memory import memory

    training, alone = job.training, job.settings.alone
    if training is None:
        return None
    sizes = inputs.get("latents_BCTHW", ())[2:]
    given = argparse.Namespace(
        gpus=job.needs().ranks, gpu=GPU, network=NETWORK, latents=",".join(map(str, sizes)) or None, tokens=None,
        phase=None, conf=arguments.conf, trust=arguments.trust,
    )  # fmt: skip
    with suppress(UserError, ValueError):
        request = request_of(training, composed.path, given, own_only=True)
        asked, plan = request.question, request.own
        rows = next(iter(inputs.values()))[0]
        found = memory(
            asked.known, ParallelPlan(microbatches=plan.microbatches) if alone else plan, precision=asked.precision,
            fp8=asked.fp8, recompute="blocks" if request.recompute else "none", microbatch_rows=rows,
            offload_optimizer=asked.offload, average=asked.average, gpu=device().type == "cuda",
        )  # fmt: skip
        return found.total + asked.beside
    return None


def _in_turns(arguments: argparse.Namespace) -> int:
    """Both sides in processes of their own, A B A B."""
    import subprocess

    from nemo_vfm.cli.benching.bench_table import compared, show_sides
    from nemo_vfm.runtime.command import own_command

    own: list[str] = [arguments.recipe, *arguments.overrides]
    options = [f"--steps={arguments.steps}", f"--warm-up={arguments.warm_up}"]
    options += [f"--{name}={value}" for name in ("conf", "overlay", "trust") for value in vars(arguments)[name]]
    options += [f"--allow-host={value}" for value in arguments.allow_host]
    options += [f"--{name}={value}" for name in ("step", "latents", "gpus")
                if (value := vars(arguments)[name]) is not None]  # fmt: skip
    sides: dict[str, Sequence[str]] = {"as it is": own, " ".join(arguments.against): [*own, *arguments.against]}
    found: dict[str, list[Json]] = {name: [] for name in sides}
    with tempfile.TemporaryDirectory(prefix="nemo-vfm-bench-") as folder:
        for number in range(_ROUNDS):
            for name, words in sides.items():
                file = Path(folder) / f"{number}.json"
                sys.stderr.write(f"round {number + 1} of {_ROUNDS}: {name}\n")
                command = own_command("bench", *words, *options, f"--json={file}")
                ended = subprocess.run(command, stdout=subprocess.DEVNULL, check=False)  # noqa: S603
                if ended.returncode:
                    return ended.returncode
                found[name].append(json.loads(file.read_text()))
                file.unlink()
    result = compared(found)
    show_sides(result)
    _write(arguments.json, result)
    return 0


def _write(file: Path | None, found: "Json") -> None:
    if file is not None:
        file.write_text(f"{json.dumps(found, indent=1, ensure_ascii=False, allow_nan=False)}\n", encoding="utf-8")


def _show(ending: "RunEnding") -> None:
    """Only what went wrong: the figures are shown once all ranks have ended."""
    if ending.outcome is None:
        from nemo_vfm.core.log import scrub

        sys.stderr.write(f"{scrub(str(ending.error))}\n{ending.trace}")
