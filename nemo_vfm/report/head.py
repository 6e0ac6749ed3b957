# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""A run folder in, what stands at the top of its page out: name, purpose, machine, date, total time, state."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nemo_vfm.report.folder import RunFolder
from nemo_vfm.report.text import mapping, number, plain, span


@dataclass(frozen=True, slots=True)
class Head:
    """The top of the page; `facts` are (what, value) pairs, `state` is empty where the run has finished."""

    name: str
    purpose: str
    facts: tuple[tuple[str, str], ...]
    state: str


def head(run: RunFolder) -> Head:
    """Read it from manifest.json, recipe.yaml, status.json and the steps' done.json."""
    manifest = mapping(run.read_json(run.root / "manifest.json"))
    seconds = step_seconds(run)
    known = {
        "hardware": plain(manifest.get("hardware") or ""),
        "started": str(manifest.get("created") or "").replace("T", " ")[:16],
        "took": span(sum(seconds.values())) if seconds else "",
        "seed": plain(manifest["seed"]) if "seed" in manifest else "",
        "commit": str(manifest.get("commit") or "")[:10],
    }
    name = str(manifest.get("recipe") or manifest.get("name") or run.root.name)
    return Head(name, _purpose(run), tuple((k, v) for k, v in known.items() if v), _state(run, seconds))


def step_seconds(run: RunFolder) -> dict[str, float]:
    """How long each finished step took, by its done.json."""
    timed = ((step.name, number(done.get("seconds"))) for step, done in run.each("done.json"))
    return {name: seconds for name, seconds in timed if seconds is not None and (name or len(run.steps) == 1)}


def _purpose(run: RunFolder) -> str:
    """The comment on top of the recipe, where there is one."""
    lines: list[str] = []
    for line in run.read_text("recipe.yaml").splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.lstrip("# ").strip())
    return " ".join(line for line in lines if not line.startswith("SPDX"))


def _state(run: RunFolder, seconds: Mapping[str, Any]) -> str:
    """Why the page may be incomplete, as a sentence; empty where every step has ended."""
    status = mapping(run.read_json(run.root / "status.json"))
    said = str(status.get("state") or status.get("status") or "")
    ended = {step.name for step in run.having("done.json")}
    open_steps = [name for name in run.planned_steps() if name not in ended]
    if said in ("failed", "error"):
        return f"This run failed. {status.get('message') or ''}".strip()
    if "" in ended or said in ("done", "finished", "ended", "complete"):
        return ""
    if open_steps and ended:
        return f"This run has not finished; still to end: {', '.join(open_steps)}."
    return f"This run has not finished ({said})." if said else ""
