"""Reads what stands at the top of a run's page: name, purpose, machine, date, total time, state."""

import re
from dataclasses import dataclass

from nemo_vfm.core.types.job import DONE, MANIFEST, STATUS
from nemo_vfm.report.parts.plain_text import as_mapping, clean, number, one_line, span
from nemo_vfm.report.parts.run_values import RunFolder

WORDS = {"failed": "failed", "nothing_kept": "kept nothing", "interrupted": "was interrupted",
         "preempted": "was stopped by a signal",
         "between_phases": "is waiting for the devices of its next phase"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Head:
    """The top of the page; `facts` are (what, value) pairs, `state` is empty where the run has finished."""

    name: str
    purpose: str
    facts: tuple[tuple[str, str], ...]
    state: str


def head(run: RunFolder) -> Head:
    """Read it from manifest.json, status.json and the steps' done.json."""
    manifest = as_mapping(run.read_json(run.root / MANIFEST))
    seconds = step_seconds(run)
    created = str(manifest.get("created") or "")
    time = re.match(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d)(.*)", created)
    utc = " UTC" if time and time[3].endswith(("Z", "+00:00")) else ""
    commit, plus, rest = str(manifest.get("commit") or "").partition("+")
    machine = as_mapping(manifest.get("hardware"))
    hardware = one_line(machine["device"] if "device" in machine else manifest.get("hardware") or "")
    if "device" in machine and machine.get("memory_gb"):
        hardware += f", {one_line(machine['memory_gb'])} GB"
    known = {
        "hardware": hardware,
        "started": f"{time[1]} {time[2]}{utc}" if time else created,
        "took": span(sum(seconds.values())) if seconds else "",
        "seed": one_line(manifest["seed"]) if "seed" in manifest else "",
        "commit": commit[:10] + plus + rest,
    }
    name = str(manifest.get("recipe") or manifest.get("name") or run.root.name)
    facts = tuple((what, value) for what, value in known.items() if value)
    return Head(name, str(manifest.get("purpose") or ""), facts, _state(run))


def step_seconds(run: RunFolder) -> dict[str, float]:
    """How long each finished step took, by its done.json."""
    timed = ((step.name, number(done.get("seconds"))) for step, done in run.each(DONE))
    known = {name: max(seconds, 0.0) for name, seconds in timed if seconds is not None}
    named = {name: seconds for name, seconds in known.items() if name}
    return named or known  # the whole's own time, where it is kept, is that of its steps once more


def _state(run: RunFolder) -> str:
    """Why the page may be incomplete, as a sentence; empty where the run has ended well."""
    status = as_mapping(run.read_json(run.root / STATUS))
    state = str(status.get("state") or "")
    ended = {step.name for step in run.steps_with(DONE)}
    missing = [name for name in run.planned_steps() if name not in ended]
    if state == "done" or "" in ended:
        return ""
    still = f" Unfinished: {', '.join(missing)}." if missing else ""
    if state in ("failed", "nothing_kept"):
        return f"This run {WORDS[state]}: {clean(str(status.get('error') or 'no message'))}{still}"
    if state or (missing and ended):
        return f"This run {WORDS.get(state, 'has not finished')}.{still}"
    return ""
