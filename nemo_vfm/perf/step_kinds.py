"""Sorts the time of profiled steps by kind of work: each moment belongs to one kind, so that their sum is the time.

On a GPU what counts is what the device runs; on a CPU the innermost operation of any thread.
"""

import heapq
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

Kind = Literal[
    "products", "attention", "norms_and_pointwise", "loss", "optimizer", "copies_and_casts", "collectives", "idle"
]
KINDS: tuple[Kind, ...] = get_args(Kind)
LOSS = "nemo_vfm: loss"  #: a range that says what its operations are for
#: Of what encloses an operation, the outermost first: the whole of it is of this kind.
_RANGES: tuple[tuple[re.Pattern[str], Kind], ...] = (
    (re.compile(r"^Optimizer\.step"), "optimizer"),
    (re.compile(f"^{LOSS}$|^_CrossEntropy"), "loss"),
    (re.compile(r"c10d::|record_param_comms|nccl:|gloo:"), "collectives"),
    (re.compile(r"scaled_dot_product|flex_attention|FlashAttn|_attention_forward"), "attention"),
)
#: Of an operation or a kernel by its own name; the first that fits.
_NAMES: tuple[tuple[re.Pattern[str], Kind], ...] = (
    (re.compile(r"nccl|c10d|all_?reduce|all_?gather|reduce_?scatter|gloo", re.I), "collectives"),
    (re.compile(r"_fused_adam|_fused_sgd|multi_tensor|_foreach_|adam", re.I), "optimizer"),
    (re.compile(r"nll_loss|cross_entropy|mse_loss|log_softmax", re.I), "loss"),
    (re.compile(r"flash|fmha|attention|sdpa|cudnn.*mha", re.I), "attention"),
    (re.compile(r"gemm|cutlass|cublas|nvjet|wgmma|aten::(add|ba)?(mm|bmm|addbmm)$|aten::_scaled_mm|baddbmm|aten::addmv|"
                r"convolution|conv\dd|mkldnn.*(linear|matmul)|sgemm|matmul", re.I), "products"),
    (re.compile(r"memcpy|memset|copy|cast|aten::(cat|fill_|zero_|clone|contiguous|_to_copy|to)$|CatArray", re.I),
     "copies_and_casts"),
)  # fmt: skip
_REST: Kind = "norms_and_pointwise"
#: Where kernels run at the same time, the moment is the first one's of these: an exchange is free while others compute.
_FIRST: tuple[Kind, ...] = ("products", "attention", "loss", "optimizer", _REST, "copies_and_casts", "collectives")


class ProfilerEvent(Protocol):
    """One event of torch's profiler (`kineto_results.events()`)."""

    def name(self) -> str: ...

    def start_ns(self) -> int: ...

    def duration_ns(self) -> int: ...

    def start_thread_id(self) -> int: ...

    def correlation_id(self) -> int: ...

    def linked_correlation_id(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Work:
    """Something that runs for a while."""

    begin_ns: int
    end_ns: int
    name: str
    kind: Kind


@dataclass(frozen=True, slots=True)
class StepKinds:
    """What the time went to."""

    seconds: Mapping[Kind, float]  #: of each kind; their sum is the whole time
    largest: Sequence[tuple[str, Kind, float]]  #: the names that took most, and their seconds


def kind_of(name: str, around: Sequence[str] = ()) -> Kind:
    """Of an operation or a kernel inside of these ranges, the outermost first."""
    for outer in (*around, name):
        for pattern, kind in _RANGES:
            if pattern.search(outer):
                return kind
    return next((kind for pattern, kind in _NAMES if pattern.search(name)), _REST)


def work_of(host: Iterable[ProfilerEvent], kernels: Sequence[ProfilerEvent]) -> list[Work]:
    """What runs: the kernels of a device where there are any, else the operations of the host.

    Args:
        host: operations and ranges of the CPU, on all threads.
        kernels: of the device; each was started by the operation that it is linked with.
    """
    around: dict[int, tuple[str, ...]] = {}
    found, open_ = list[Work](), dict[int, list[tuple[int, str]]]()
    for event in sorted(host, key=lambda one: (one.start_ns(), -one.duration_ns())):
        begin, end = event.start_ns(), event.start_ns() + event.duration_ns()
        stack = open_.setdefault(event.start_thread_id(), [])
        while stack and stack[-1][0] <= begin:
            stack.pop()
        outer = tuple(name for _, name in stack)
        if number := event.correlation_id():  # 0 is none
            around[number] = (*outer, event.name())
        stack.append((end, event.name()))
        if "::" in event.name() and not event.name().startswith("autograd::"):
            found.append(Work(begin, end, event.name(), kind_of(event.name(), outer)))
    if not kernels:
        return found
    return [
        Work(one.start_ns(), one.start_ns() + one.duration_ns(), one.name(),
             _of_kernel(one.name(), around.get(one.linked_correlation_id(), ())))
        for one in kernels
    ]  # fmt: skip


def _of_kernel(name: str, around: Sequence[str]) -> Kind:
    """By the ranges that it was started in, by its own name where that says enough, else by its operation's."""
    own = kind_of(name, around)
    return own if own != _REST or not around else kind_of(around[-1])


def step_kinds(work: Sequence[Work], begin_ns: int, end_ns: int, *, nested: bool, most: int = 10) -> StepKinds:
    """Divide the time from `begin_ns` to `end_ns`.

    Args:
        work: what ran, partly outside of this time perhaps.
        nested: whether one piece of work contains others, as operations of a CPU do: a moment is then the innermost
            one's. Else pieces run at the same time, and a moment is that of the kind that matters most.
        most: how many of the largest names are told.
    """
    inside = sorted((one for one in work if one.end_ns > begin_ns and one.begin_ns < end_ns), key=lambda w: w.begin_ns)
    seconds: dict[Kind, float] = dict.fromkeys(KINDS, 0.0)
    names: dict[tuple[str, Kind], float] = {}
    edges = sorted({begin_ns, end_ns, *(min(max(edge, begin_ns), end_ns) for one in inside
                                        for edge in (one.begin_ns, one.end_ns))})  # fmt: skip
    running: list[tuple[tuple[int, ...], int, Work]] = []
    coming = 0
    for low, high in itertools.pairwise(edges):
        while coming < len(inside) and inside[coming].begin_ns <= low:
            one = inside[coming]
            rank = (-one.begin_ns, one.end_ns) if nested else (_FIRST.index(one.kind), one.begin_ns)
            heapq.heappush(running, (rank, coming, one))
            coming += 1
        while running and running[0][2].end_ns <= low:
            heapq.heappop(running)
        if not running:
            seconds["idle"] += (high - low) / 1e9
            continue
        one = running[0][2]
        seconds[one.kind] += (high - low) / 1e9
        names[one.name, one.kind] = names.get((one.name, one.kind), 0.0) + (high - low) / 1e9
    largest = sorted(((name, kind, took) for (name, kind), took in names.items()), key=lambda one: -one[2])[:most]
    return StepKinds(seconds, largest)
