"""Asks `nemo-vfm`, in other processes, about a recipe: its steps, its problems, its memory and time.

So the launcher imports neither torch nor a recipe's classes, and a class that fails at import fails there.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.plan import isolated
from launcher.plan.programs import search_path
from launcher.plan.trusted_modules import Modules, modules
from launcher.request.request import LaunchRequest
from launcher.slurm import slurm
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.types.json_value import Json

_PATIENCE_S = 600.0  # a plan for thousands of GPUs takes some tens of seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseInfo:
    """A part of a training on one number of ranks."""

    name: str  #: of the phase
    ranks: int  #: how many
    degrees: Mapping[str, int]  #: of its layout, by axis


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What runs by itself."""

    name: str  #: as `nemo-vfm run --only` takes it; empty for a recipe that is one job
    kind: str  #: the class of its job
    ranks: int  #: on how many it works, in its widest phase
    on_gpu: bool  #: whether a GPU is of use to it
    phases: tuple[PhaseInfo, ...] = ()  #: where their number changes
    degrees: Mapping[str, int]  #: of its widest layout, by axis
    engine: str = ""  #: what trains: `torch`, `megatron`, or empty where nothing does
    plannable: bool = False  #: whether it is a training that `nemo-vfm plan` can rank layouts for
    any_nodes: bool = False  #: whether it takes all GPUs of as many nodes as it gets: its own files say how many
    whole_nodes: int = 0  #: of how many nodes it takes all GPUs, whose number it leaves open; 0 where `ranks` says it
    ray: bool = False  #: whether it wants a Ray cluster
    #: how often parts of its work, which need nothing of each other, are gone through; 0 where it has none.
    rounds: int = 0
    missing: tuple[str, ...] = ()  #: addresses of values that are still to be given


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeInfo:
    """A recipe, as one who puts it into a queue must know it."""

    name: str  #: of its file
    header: str  #: the first line of its comment
    steps: tuple[Step, ...]  #: in the order in which they run
    missing: tuple[str, ...] = ()  #: addresses of values that are still to be given
    recipients: tuple[str, ...] = ()  #: a sentence for every host and every variable, and who would get it
    packages: tuple[str, ...] = ()  #: a sentence where optional packages that it needs are not installed here


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One combination of a sweep."""

    name: str  #: of its folder
    changes: tuple[str, ...]  #: of the recipe, its run folder among them
    work: RecipeInfo  #: of the recipe with these


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepInfo:
    """Every combination of some values."""

    folder: Path  #: in which each has its run folder
    points: tuple[Point, ...]  #: the combinations
    table: Json  #: what sweep.json in the folder holds before any has run


@dataclass(frozen=True, slots=True)
class CommandOutput:
    """What a verb said, and its exit status."""

    status: int
    text: str
    complaint: str = ""


def work(request: LaunchRequest, code: Path | None = None) -> RecipeInfo:
    """The steps of a recipe.

    Args:
        code: root of the repository; of it, a class may be named where `--trust` names its package.
    """
    return _work(_query(["check", *request.recipe_words(), "--work"], modules(request.trust, code)))


def sweep(request: LaunchRequest, code: Path | None = None) -> SweepInfo:
    """Every combination of a sweep."""
    found = _query(
        ["check", *request.recipe_words(), "--work", "--sweep", *request.sweep], modules(request.trust, code)
    )
    points = [Point(name=one["name"], changes=tuple(one["changes"]), work=_work(one["work"]))
              for one in found["points"]]  # fmt: skip
    return SweepInfo(folder=Path.cwd() / found["folder"], points=tuple(points), table=found["table"])


def query_check(
    request: LaunchRequest, gpus: int, gpu: str | None, code: Path | None = None, *, mounts: Sequence[str] | None = None
) -> CommandOutput:
    """What `check` says: of so many GPUs, of this kind where it is known, and of the paths that the recipe reads.

    Args:
        gpus: 0 asks of none.
        mounts: `outside:inside` of the container that it runs in; empty is no container, None looks at no paths.
    """
    kind = ["--gpu", gpu] if gpu else []
    size = ["--gpus", str(gpus), *kind] if gpus else []
    look = [] if mounts is None else ["--paths", *(f"--mount={one}" for one in mounts)]
    return _output_of(["check", *request.recipe_words(), *size, *look], modules(request.trust, code))


def query_plan(
    request: LaunchRequest, gpus: int, gpu: str, network: str, *, phase: str = "", code: Path | None = None
) -> Mapping[str, Any] | str:
    """What `plan --json` says of one training, or in a sentence why it says nothing."""
    words = ["--gpus", str(gpus), "--gpu", gpu, "--network", network, "--json", *(["--phase", phase] if phase else [])]
    output = _output_of(["plan", *request.recipe_words(), *words], modules(request.trust, code))
    try:
        found = json.loads(output.text)
    except ValueError:
        return (output.complaint or output.text).strip() or f"nemo-vfm plan ended with status {output.status}"
    return found if isinstance(found, dict) else "nemo-vfm plan gave no estimate"


def _query(words: Sequence[str], found: Modules) -> Any:
    """Raises UserError with what the verb says where it objects."""
    output = _output_of(words, found)
    if output.status:
        raise UserError(
            (output.text + output.complaint).strip() or f"nemo-vfm {words[0]} ended with status {output.status}"
        )
    return json.loads(output.text)


def _work(found: Mapping[str, Any]) -> RecipeInfo:
    return RecipeInfo(name=found["name"], header=found["header"] or "", missing=tuple(found["missing"]),
                      steps=tuple(map(_step, found["steps"])), recipients=tuple(found.get("recipients", ())),
                      packages=tuple(found.get("packages", ())))  # fmt: skip


def _step(found: Mapping[str, Any]) -> Step:
    return Step(
        name=found["name"], kind=found["class"], ranks=found["ranks"], on_gpu=found["devices"] == "gpu",
        phases=tuple(PhaseInfo(name=one["name"], ranks=one["ranks"], degrees=one.get("degrees", {}))
                     for one in found["phases"]), degrees=found["degrees"], engine=found["engine"],
        plannable=found["plannable"], any_nodes=found["any_nodes"], whole_nodes=found["whole_nodes"], ray=found["ray"],
        rounds=found["rounds"], missing=tuple(found["missing"]),
    )  # fmt: skip


def _output_of(words: Sequence[str], found: Modules) -> CommandOutput:
    """Run a verb as nobody's rank: what a scheduler or a launcher left in the environment is not meant for it."""
    own = slurm.clean(os.environ)
    environment = {**own, "PATH": search_path(), "PYTHONPATH": own.get("PYTHONPATH", ""), "COLUMNS": "110"}
    where = json.dumps({"path": found.path, "named": dict(found.named)})
    # Our own interpreter and module, words as arguments. -I: neither PYTHONPATH nor the working directory is searched.
    command = [sys.executable, "-I", isolated.__file__, where, *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_PATIENCE_S,  # noqa: S603
                              env=environment, stdin=subprocess.DEVNULL)  # fmt: skip
    except subprocess.TimeoutExpired:
        return CommandOutput(1, "", f"nemo-vfm {words[0]} did not end within {_PATIENCE_S:.0f} s")
    return CommandOutput(done.returncode, done.stdout, done.stderr)
