"""Decides what a cluster's file that is not ours may set without `--trust cluster`: sizes, names, harmless settings.

The file is an ingredient, found by its name below the working directory, so it may be a stranger's. Settings that could
run code must come from the command line. Settings are allowed by lists of harmless ones, not refused by lists of
dangerous ones. Every library has its own variables that load a file, and every release of Slurm further options that
start a program.
"""

import re
from pathlib import Path

from launcher.request.request import CLUSTER
from nemo_vfm.config.recipe_errors import Problem
from nemo_vfm.config.roots import shipped
from nemo_vfm.config.tree import Map, Node, Scalar, Seq, walk
from nemo_vfm.core.secret import is_secret_name

_SIZES = frozenset((
    "_target_", "gpu", "gpus_per_node", "cpus_per_node", "memory_gb", "time", "partition", "account", "qos",
    "reservation", "constraint", "exclude", "exclusive", "gpu_request", "segment", "cpu_nodes", "cpus_per_cpu_node",
    "cpu_partition", "most_at_once", "cpu_bind", "interface", "ib_timeout", "rank_timeout_s", "node_check",
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
    return [
        Problem(path, node.mark, f"{why}; if you trust {node.mark.source.name}, add --trust {CLUSTER}")
        for path, node in walk(root)
        if not _is_ours(node) and (why := _why(path, node))
    ]


def _is_ours(node: Node) -> bool:
    source = node.mark.source
    if not source.is_file:
        return source.is_typed
    return Path(source.name).resolve().is_relative_to(shipped("conf").resolve())


def _why(path: str, node: Node) -> str:
    """Empty where it is harmless, or where what lies below is looked at by itself."""
    head, _, rest = path.partition(".")
    if isinstance(node, Map) and (not rest or head == "container"):
        return ""
    text = str(node.value) if isinstance(node, Scalar) and node.value is not None else ""
    if head == "environment":
        return _of_variable(rest, text)
    if head in ("options", "step_options"):
        return _of_option(rest, text)
    return _of_field(head, rest, text, node)


def _of_variable(name: str, text: str) -> str:
    loads = _LOADS.search(name) and name not in _LOADS_NOT
    if not _VARIABLE.fullmatch(name) or loads:
        return f"{name} is not one of the variables that can never load code"
    return "" if _VALUE.fullmatch(text) else f"{name} contains a path, and what it names may be loaded"


def _of_option(name: str, text: str) -> str:
    if name not in _OPTIONS:
        return f"--{name} is not one of the Slurm options that start nothing"
    return "" if "/" not in text else f"--{name} contains a path, and what it names may be run"


def _of_field(head: str, rest: str, text: str, node: Node) -> str:
    """Of a key that is neither a variable nor an option."""
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
