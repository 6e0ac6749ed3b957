# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""A launch and the folder it wants in, why it cannot have it out: another recipe ran there, or a job still does."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from launcher import slurm
from launcher.folder import Kept, existing
from launcher.launch import Launch
from nemo_vfm.config import read_values
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.types import LAUNCH

_OURS = (LAUNCH, ".lock", "manifest.json")  # what a run folder may hold before its recipe is there
_SHOWN = 6
_LONGEST = 80
Differences = dict[str, tuple[str, str]]


def objections(launch: Launch) -> list[str]:
    """Sentences; none where the folder is free, or where the same run goes on there."""
    return [*_of_another_recipe(launch), *_of_other_files(launch), *_of_jobs(launch)]


def _of_another_recipe(launch: Launch) -> Iterator[str]:
    file = launch.run_dir / "recipe.yaml"
    if not file.is_file():
        return
    there, now = read_values(file.read_text(), str(file)), read_values(launch.recipe, "this recipe")
    found = {key: pair for key, pair in differences(there, now).items() if not _may_differ(key, launch.asked.allow)}
    if found:
        shown = "; ".join(f"{key}: {old} there, {new} now" for key, (old, new) in list(found.items())[:_SHOWN])
        more = f", and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        keys = " ".join(f"--allow {key}" for key in list(found)[:_SHOWN])
        yield (f"{launch.run_dir} holds a run of another recipe ({shown}{more}); take another folder with run_dir=..., "
               f"or go on all the same with {keys}")  # fmt: skip


def _of_other_files(launch: Launch) -> Iterator[str]:
    if launch.run_dir.is_dir() and not (launch.run_dir / "recipe.yaml").is_file():
        others = sorted(path.name for path in launch.run_dir.iterdir() if path.name not in _OURS)
        if others := [name for name in others if not name.endswith(".tmp")]:
            yield f"{launch.run_dir} holds {', '.join(others[:3])} and is no run folder; take another run_dir"


def _of_jobs(launch: Launch) -> Iterator[str]:
    kept = existing(launch.run_dir)
    if kept is not None:
        yield from still_there(kept)


def still_there(kept: Kept) -> Iterator[str]:
    """A sentence on the jobs of an earlier launch that wait or run."""
    ids = kept.slurm_ids()
    if not ids or not slurm.is_here():
        return
    names = {job["slurm"][-1]: job["name"] for job in kept.jobs if job["slurm"]}
    live = [f"{one.id} ({names.get(one.array, one.name)}) is {one.state}" for one in slurm.queued(ids).values()
            if one.waits_or_runs]  # fmt: skip
    if live:
        more = f" and {len(live) - _SHOWN} more wait or run" if len(live) > _SHOWN else ""
        yield (f"{kept.run_dir} has jobs in the queue: {', '.join(live[:_SHOWN])}{more}. Wait for them, or end them: "
               f"vfm-launch cancel {kept.run_dir}")  # fmt: skip


def differences(there: Any, now: Any) -> Differences:
    """`{key: (there, now)}` of values, as texts; where a run lies is not part of what it is."""
    old, new = dict(_flat(there)), dict(_flat(now))
    keys = [key for key in {**old, **new} if key != "run_dir" and old.get(key, ...) != new.get(key, ...)]
    return {key: (_text(old, key), _text(new, key)) for key in keys}


def _may_differ(key: str, allowed: tuple[str, ...]) -> bool:
    """nemo-vfm itself judges the rest: how long it runs, what it logs and keeps is no reason to stop here."""
    parts = key.split(".")
    inert = {"duration", "num_workers", "logger", "loggers", "checkpoint"} & set(parts)
    named = any(key == name or key.startswith(f"{name}.") for name in allowed)
    return bool(inert) or named or parts[-1].endswith("_every") or "_every_" in parts[-1]


def _text(values: Mapping[str, Any], key: str) -> str:
    text = json.dumps(values[key], ensure_ascii=False) if key in values else "nothing"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 4]} ..."


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for key, below in value.items():
            yield from _flat(below, f"{path}.{key}" if path else str(key))
    elif path:
        yield path, value


def require_free(kept: Kept) -> None:
    """Raises UserError where a job of this launch waits or runs."""
    if found := list(still_there(kept)):
        raise UserError("; ".join(found))
