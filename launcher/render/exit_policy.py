"""Classifies how an attempt ended and decides whether to restart it: one table, also used by the batch script.

What an attempt says of itself comes before its status. srun returns the highest status of all tasks. So the 69 of ranks
that only lost a peer hides the 2 of the one that failed. But a log holds anybody's words, such as captions and samples.
So only lines whose writer is known are compared with the texts below (`WORDS`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from launcher.render.quoting import quote


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One way in which an attempt ends."""

    name: str  #: one word, as in attempts.tsv
    again: bool  #: whether the same job is begun again
    sentence: str  #: for people: what happened, and what then
    blames_node: bool = False  #: whether the node of the rank that is named may be at fault


_ALL = (
    Kind(name="ok", again=False, sentence="done"),
    Kind(name="next_phase", again=False, sentence="a phase is done; the next job continues on other devices"),
    Kind(name="preempted", again=True, sentence="asked to stop; the work is saved"),
    Kind(name="time_limit", again=True, sentence="the time limit was near; the work is saved"),
    Kind(name="hang", again=True, sentence="a rank sent no heartbeat", blames_node=True),
    Kind(name="lost_rank", again=True, sentence="a rank was killed or crashed", blames_node=True),
    Kind(name="node_fault", again=True, sentence="a node failed", blames_node=True),
    Kind(name="out_of_memory", again=False,
         sentence="out of memory, and it would happen again: use fewer samples per step, more devices, or more "
                  "memory for the job"),
    Kind(name="non_finite", again=False,
         sentence="the loss or its gradient was not a number; the weights before it are in the last checkpoint"),
    Kind(name="configuration", again=False, sentence="the recipe or its environment is at fault, and would fail again"),
    Kind(name="nothing_kept", again=False, sentence="every input was dropped or failed; the report says why"),
    Kind(name="interrupted", again=False, sentence="interrupted; run the same command again to resume"),
    Kind(name="unknown", again=False, sentence="something unexpected; see the log and traceback.txt"),
)  # fmt: skip
KINDS: Mapping[str, Kind] = MappingProxyType({kind.name: kind for kind in _ALL})


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """When an end is of a kind: a status, and a text where one is needed."""

    kind: str  #: its name
    statuses: tuple[str, ...]  #: patterns of bash for the exit status of srun
    texts: tuple[str, ...] = ()  #: one of them is in what was said; none is needed where empty
    near: bool = False  #: whether it holds only near the time limit


_SIGNALLED = "1[2-9][0-9]"  # 128 and a number: killed by a signal; 126, 127 and 130 have rules before
_LOST = ("69", _SIGNALLED)
#: The first that fits decides.
RULES = (
    Rule(kind="ok", statuses=("0",)),
    Rule(kind="next_phase", statuses=("76",)),
    Rule(kind="time_limit", statuses=("75", "138", "143"), near=True),  # 138, 143: before Python could listen
    Rule(kind="preempted", statuses=("75", "138", "143")),
    Rule(kind="interrupted", statuses=("130",)),
    Rule(kind="nothing_kept", statuses=("3",)),
    Rule(kind="node_fault", statuses=("[1-9]*",),
         texts=("Node failure on", "DUE TO NODE FAILURE", "uncorrectable ECC", "GPU has fallen off the bus",
                "Communication connection failure", "Unable to contact slurmd", "vfm-launch: the check of node")),
    Rule(kind="out_of_memory", statuses=("[1-9]*",),
         texts=("CUDA out of memory", "CUDA error: out of memory", "MemoryError", "oom_kill", "oom-kill", "OOM Killed",
                "Out Of Memory", "Out of memory: Killed", "cgroup out of memory")),
    Rule(kind="hang", statuses=_LOST,
         texts=("has sent no heartbeat", "which wait for it, gave up")),
    Rule(kind="non_finite", statuses=("2", "69"), texts=("is not finite at batch",)),
    Rule(kind="configuration", statuses=("2", "126", "127")),  # 126, 127: there is no such program
    Rule(kind="configuration", statuses=("69",), texts=(" ended: UserError:", " ended: ValueError:")),
    # A rank that was killed says nothing more: one whose error is told died of that, and would again.
    Rule(kind="unknown", statuses=("69",), texts=(" ended: ",)),
    Rule(kind="lost_rank", statuses=("69",),
         texts=("heartbeats have stopped", "timed out waiting for the others", "can no longer reach rank 0",
                "lost the rendezvous store")),
    Rule(kind="lost_rank", statuses=(_SIGNALLED,)),
    Rule(kind="unknown", statuses=("*",)),
)  # fmt: skip

#: How lines of Slurm and of the kernel begin, as `grep -E` and awk read it; a backslash would be read twice.
SYSTEM = ("^((srun|slurmstepd[^ ]*|NVRM|([A-Z][a-z]+ +[0-9]+ [0-9:]+ [^ ]+ )?kernel): |"
          "[[] *[0-9]+[.][0-9]+[]] (NVRM|Out of memory|Memory cgroup out of memory|oom-kill):)")  # fmt: skip
#: A program of awk that leaves of a log what speaks of an attempt's end: lines of the system and of the check of nodes,
#: and of each task its last sentence on a rank and the exception that it died of, after which it said little. `srun
#: --label` puts the number of a task before its lines, but not before its own. An old awk knows no `{2}`.
WORDS = r"""
  { task = "" }
  match($0, /^ *[0-9]+: /) { task = substr($0, 1, RLENGTH); $0 = substr($0, RLENGTH + 1) }
  { lines[task]++ }
  $0 ~ by_system && !(task != "" && /^srun: /) || /^vfm-launch: the check of node / { print }
  /^rank [0-9]+ / { rank[task] = $0 }
  /^[A-Za-z_][A-Za-z0-9_.]*(Error|Exception|Interrupt|Exit)(:|$)/ && before[task] ~ /^[ \t]/ ||
    /^unexpected: / || /^ *what\(\): / { died[task] = $0; at[task] = lines[task] }
  /^The traceback is in / { died[task] = before[task]; at[task] = lines[task] }
  { before[task] = $0 }
  END {
    for (task in rank) print rank[task]
    for (task in died) if (lines[task] - at[task] < 50) print died[task]
  }
"""


def branches() -> str:
    """The rules as branches of bash, for `case "$status:$near:$said" in`; `$near` is near or far."""
    lines = []
    for rule in RULES:
        near = "near" if rule.near else "*"
        for text in [f"*{quote(text)}*" for text in rule.texts] or ["*"]:  # bash wants a branch's patterns on one line
            patterns = " | ".join(f"{status}:{near}:{text}" for status in rule.statuses)
            lines.append(f"  {patterns}) kind={rule.kind} ;;")
    return "\n".join(lines)


def names(kinds: Iterable[Kind]) -> str:
    """Their names as one pattern of bash."""
    return " | ".join(kind.name for kind in kinds)
