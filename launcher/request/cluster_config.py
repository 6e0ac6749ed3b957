"""Composes the requested cluster's configuration like a recipe, and lets another's file set only what is harmless.

The file is an ingredient, found by its name below the working directory, so it may be a stranger's. Settings that could
run code must come from the command line, or need `--trust cluster`. They are allowed by lists of harmless ones, not
refused by lists of dangerous ones: every library has its own variables that load a file, and every release of Slurm
further options that start a program.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from launcher.request.cluster import Local, Slurm
from launcher.request.request import CLUSTER, LaunchRequest
from nemo_vfm.config import RecipeError, Roots, compose, trust_list
from nemo_vfm.config.build import make
from nemo_vfm.config.compose import RESERVED
from nemo_vfm.config.interpolate import resolve
from nemo_vfm.config.recipe_check import Checker
from nemo_vfm.config.recipe_errors import Mark, Problem, SourceText, fail, shown_path
from nemo_vfm.config.roots import BUILT_IN, shipped_folder
from nemo_vfm.config.tree import Map, Node, Scalar, Seq, to_plain, walk
from nemo_vfm.config.yaml_source import parse
from nemo_vfm.core.network.key_shapes import looks_like_a_key, shape
from nemo_vfm.core.secret import conceal, is_secret_name, register
from nemo_vfm.core.types.json_value import Json

Where = Slurm | Local
SLOT = "cluster"
_NO_SECRETS = ("this would be written to the script, and scripts never store environment values. Jobs inherit your "
               "environment, so drop it; or name a file that only you can read under cluster.secrets")  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenCluster:
    """A cluster."""

    where: Where  #: what its file describes
    values: Json  #: the same as plain values, as they are kept for later
    notes: tuple[str, ...] = ()  #: sentences: whose file it is, and what of it runs by `--trust cluster`


def cluster_of(request: LaunchRequest) -> ChosenCluster:
    """The cluster that is asked for."""
    roots = Roots.standard(request.conf)
    mark = Mark(SourceText.from_word(f"{SLOT}={request.cluster}"), 1, len(SLOT) + 2)
    file = roots.require_ingredient(SLOT, request.cluster, mark)
    # As they are for the file itself: `time=1:00:00` for `cluster.time=1:00:00`, `~qos` for `~cluster.qos`.
    changes = [re.sub(rf"^(~?){SLOT}\.", r"\1", word) for word in request.cluster_changes]
    made = _build_cluster(compose(file, changes, request.conf).root.without(*RESERVED), roots, request)
    whose = roots.whose(file)
    # Nobody asked where the package lies: its own files go by the name that documentation gives them.
    name = f"conf/{SLOT}/{file.name}" if whose == BUILT_IN else shown_path(str(file))
    return replace(made, notes=(f"{name}, {whose}", *made.notes))


def cluster_again(values: Json, request: LaunchRequest) -> Where:
    """The cluster of an earlier launch, from the values that it kept; its folder may be a stranger's, too."""
    root = parse(json.dumps(values), "launch.json", is_file=False)
    assert isinstance(root, Map)
    return _build_cluster(root, Roots.standard(), request).where


def _build_cluster(root: Map, roots: Roots, request: LaunchRequest) -> ChosenCluster:
    environment = root.items.get("environment")
    if isinstance(environment, Map):  # its numbers as texts: 1_000 and 12.10 are not to arrive as 1000 and 12.1
        texts = {name: replace(node, value=node.written) for name, node in environment.items.items()
                 if isinstance(node, Scalar) and type(node.value) in (int, float) and node.written}  # fmt: skip
        environment = replace(environment, items={**environment.items, **texts})
        root = replace(root, items={**root.items, "environment": environment})
    _refuse_keys(root)
    for path, node in _secrets(root):
        raise fail(_NO_SECRETS, node.mark, path)
    tree, problems = resolve(root)
    _refuse_keys(tree)  # a reference may put two halves together
    checker = Checker((*trust_list(request.trust), "launcher.request.cluster."), roots.targets)
    part = checker.node(tree, Where, "", tree.mark)
    found: list[Problem] = [*problems, *checker.problems]
    if found:
        raise RecipeError(found)
    trusted = objections(root)  # asked for last: nobody should trust a slip of the pen
    if trusted and not request.trusts_cluster:
        raise RecipeError(trusted)
    made: Where = make(part)
    values: Any = to_plain(tree)
    notes = [f"{one.path} of {one.mark.place()} is used, because of --trust {CLUSTER}" for one in trusted]
    return ChosenCluster(where=made, values=values, notes=tuple(notes))


def _secrets(root: Node) -> Iterator[tuple[str, Scalar]]:
    """What comes from the environment, and what holds the value of a variable that is a key by its name."""
    for path, node in walk(root):
        text = node.value if isinstance(node, Scalar) and isinstance(node.value, str) else ""
        if isinstance(node, Scalar) and (("${" in text and "env:" in text) or conceal(text) != text):
            yield path, node


def _refuse_keys(root: Node) -> None:
    """Raises RecipeError at a value that looks like a key; of a variable, letters that nobody types are enough."""
    for path, node in walk(root):
        if isinstance(node, Scalar) and isinstance(node.value, str):
            what = looks_like_a_key(node.value) if path.startswith("environment.") else shape(node.value)
            if what:
                register(node.value)  # the complaint shows the line that it stands on
                raise fail(f"this looks like {what}, and it {_NO_SECRETS.partition(' ')[2]}", node.mark, path)


_SIZES = frozenset((
    "_target_", "gpu", "gpus_per_node", "cpus_per_node", "memory_gb", "time", "partition", "account", "qos",
    "reservation", "constraint", "exclude", "exclusive", "gpu_request", "segment", "cpu_nodes", "cpus_per_cpu_node",
    "cpu_partition", "max_at_once", "cpu_bind", "interface", "ib_timeout", "rank_timeout_s", "node_check",
    "restart",
))  # fmt: skip
#: Threads, networks, memory, logs; none of these loads a file, unless one of its words is among `_LOADS`.
_VARIABLE = re.compile(
    r"(?:NCCL|TORCH_NCCL|OMP|KMP|GOMP|GLOO|MKL|OPENBLAS|NUMEXPR|NVTE|UCX|FI|PSM2)_[A-Z0-9_]+|"
    r"CUDA_(?:DEVICE_MAX_CONNECTIONS|VISIBLE_DEVICES|DEVICE_ORDER|LAUNCH_BLOCKING|MODULE_LOADING)|"
    r"CUBLAS_WORKSPACE_CONFIG|PYTORCH_(?:CUDA_|HIP_)?ALLOC_CONF|"
    r"TORCH_(?:DISTRIBUTED_DEBUG|CPP_LOG_LEVEL|SHOW_CPP_STACKTRACES|ALLOW_TF32_CUBLAS_OVERRIDE)|TP_SOCKET_IFNAME|"
    r"TOKENIZERS_PARALLELISM|(?:HF_HUB|HF_DATASETS|TRANSFORMERS)_OFFLINE|RDMAV_(?:FORK|HUGEPAGES)_SAFE|"
    r"PYTHON(?:UNBUFFERED|FAULTHANDLER|HASHSEED|DONTWRITEBYTECODE)|NEMO_VFM_LOG_(?:LEVEL|WIDTH)|NVIDIA_TF32_OVERRIDE|"
    r"MALLOC_ARENA_MAX|TZ|LANG|LC_[A-Z]+|RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE"
)
_LOADS = re.compile(
    r"(?:^|_)(?:PLUGINS?|\w*PATHS?|\w*FILE|DIRS?|LIB|LIBRARY|LIBRARIES|MODULES?|CONF|CONFIG|DRIVERS?|PROVIDER|PREFIX|"
    r"PRELOAD|CMD|COMMAND|PROGRAM|HOOKS?|DEST)(?:_|$)"
)
_LOADS_NOT = frozenset(("CUDA_MODULE_LOADING", "CUBLAS_WORKSPACE_CONFIG", "PYTORCH_ALLOC_CONF", "FI_PROVIDER",
                        "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"))  # fmt: skip
#: No path: neither a slash nor what a shell would replace.
_VALUE = re.compile(r"[\w.,:;=^+@ -]{0,500}", re.ASCII)
#: Of sbatch and srun: where and when a job runs, how tasks share cores, and who is told.
_OPTIONS = frozenset((
    "accel-bind", "acctg-freq", "begin", "cluster-constraint", "clusters", "contiguous", "core-spec",
    "cores-per-socket", "cpu-bind", "cpu-freq", "cpus-per-gpu", "deadline", "delay-boot", "distribution", "exclusive",
    "extra-node-info", "gpu-bind", "gpu-freq", "gpus", "gpus-per-socket", "gpus-per-task", "hint", "kill-on-bad-exit",
    "label", "licenses", "mail-type", "mail-user", "mem-bind", "mem-per-cpu", "mem-per-gpu", "mincpus", "network",
    "nice", "no-kill", "ntasks-per-core", "ntasks-per-gpu", "ntasks-per-socket", "overcommit", "overlap",
    "oversubscribe", "power", "priority", "quiet", "resv-ports", "sockets-per-node", "spread-job", "switches",
    "thread-spec", "threads-per-core", "time-min", "tmp", "tres-bind", "tres-per-task", "unbuffered", "use-min-nodes",
    "verbose", "wait", "wait-all-nodes", "wckey",
))  # fmt: skip


def objections(root: Node) -> list[Problem]:
    """What in a cluster's tree needs `--trust cluster`: nothing of the command line, and nothing of our files."""
    found, ours = [], shipped_folder("conf").resolve()
    for path, node in walk(root):
        source = node.mark.source
        harmless = Path(source.name).resolve().is_relative_to(ours) if source.is_file else source.is_typed
        if not harmless and (why := _why(path, node)):
            found.append(Problem(path, node.mark, f"{why}; if you trust {source.name}, add --trust {CLUSTER}"))
    return found


def _why(path: str, node: Node) -> str:
    """Empty where it is harmless, or where what lies below is looked at by itself."""
    head, _, rest = path.partition(".")
    if isinstance(node, Map) and (not rest or head == "container"):
        return ""
    text = str(node.value) if isinstance(node, Scalar) and node.value is not None else ""
    if head == "environment":
        loads = _LOADS.search(rest) and rest not in _LOADS_NOT
        if not _VARIABLE.fullmatch(rest) or loads:
            return f"{rest} is not one of the variables that can never load code"
        return "" if _VALUE.fullmatch(text) else f"{rest} contains a path, and what it names may be loaded"
    if head in ("options", "step_options"):
        if rest not in _OPTIONS:
            return f"--{rest} is not one of the Slurm options that start nothing"
        return "" if "/" not in text else f"--{rest} contains a path, and what it names may be run"
    if head in _SIZES or (head == "container" and rest in ("_target_", "writable")) or isinstance(node, Seq):
        return ""
    if head == "secrets":
        return "" if is_secret_name(rest) and not _LOADS.search(rest) else f"{rest} is not the name of a secret"
    if head == "modules":
        return "a module given by a path runs its code" if text.startswith(("/", ".", "~", "-")) else ""
    if head == "mpi":
        return "" if re.fullmatch(r"\w*", text, re.ASCII) else "mpi is a word, such as pmix"
    if head == "container" and rest == "program" and text in ("apptainer", "singularity"):
        return ""
    return f"{head if head != 'container' else 'a container'} decides which programs run"
