# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Tells a scheduler what a recipe's job needs: its steps, the ranks of each, its phases."""

import sys
from collections.abc import Iterator, Sequence
from math import prod
from typing import TYPE_CHECKING, TypeGuard

from nemo_vfm.core.types.job import Job, ShardedJob, WholeNodesJob
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.parallel.plan.plan import AXES, ParallelPlan
from nemo_vfm.workflow import Workflow, num_ranks

if TYPE_CHECKING:
    from nemo_vfm.config import Composed
    from nemo_vfm.synth.sample_videos import Sample
    from nemo_vfm.train.job import Train


def described(composed: "Composed", job: Job | None, missing: Sequence[str], on_gpu: Sequence[str]) -> Json:
    """Everything as one JSON object.

    Args:
        composed: the recipe.
        job: what it builds; None where too much of it is still to be given.
        missing: addresses of values that the user has yet to give.
        on_gpu: addresses of the components that compute on a GPU.
    """
    from nemo_vfm.config.recipe_header import header

    return {
        "name": composed.path.stem, "run_dir": str(composed.run_dir), "header": header(composed.path).title,
        "steps": [] if job is None else [_step(name, below, missing, on_gpu) for name, below in _steps(job)],
        "missing": list(missing),
    }  # fmt: skip


def _steps(job: Job) -> Iterator[tuple[str, Job]]:
    """Those that `run --only` takes; a job by itself has no name."""
    if isinstance(job, Workflow):
        yield from job.steps.items()
    else:
        yield "", job


def _step(name: str, job: Job, missing: Sequence[str], on_gpu: Sequence[str]) -> Json:
    at = f"steps.{name}." if name else ""
    own = [path for path in missing if path.startswith(at)]
    computes = any(f"{path}.".startswith(at) for path in on_gpu)
    return {
        "name": name, "class": f"{type(job).__module__}.{type(job).__qualname__}", "ranks": num_ranks(job),
        "devices": "gpu" if computes else "cpu", "phases": _phases(job), "degrees": _degrees(job),
        "engine": _engine(job),
        "whole_nodes": _whole_nodes(job), "ray": _has_ray(job),
        "rounds": job.rounds() if isinstance(job, ShardedJob) else 0, "missing": own,
    }  # fmt: skip


def trains(job: Job) -> "TypeGuard[Train]":
    """Whether it is a training; where nobody has imported that room yet, none is, and torch need not be waited for."""
    room = sys.modules.get("nemo_vfm.train.job")
    return room is not None and isinstance(job, room.Train)


def samples(job: Job) -> "TypeGuard[Sample]":
    """Whether it draws videos; see `trains`."""
    room = sys.modules.get("nemo_vfm.synth.sample_videos")
    return room is not None and isinstance(job, room.Sample)


def _phases(job: Job) -> Json:
    if not trains(job):
        return []
    return [{"name": one.name, "ranks": one.plan.world, "degrees": _sizes(one.plan)} for one in job.phases]


def _degrees(job: Job) -> dict[str, int]:
    """Of the widest layout."""
    if isinstance(job, Workflow):
        return max(map(_degrees, job.steps.values()), key=lambda one: prod(one.values()))
    if samples(job):
        return _sizes(job.parallel.layout())
    if not trains(job):
        return {}
    plans = [one.plan for one in job.phases] or [job.parallel]
    return _sizes(max(plans, key=lambda plan: plan.world))


def _engine(job: Job) -> str:
    """What carries a training out: torch, or megatron where a class from such a module does; empty where none is."""
    if isinstance(job, Workflow):
        return max(map(_engine, job.steps.values()), key=lambda name: ("", "torch", "megatron").index(name), default="")
    if trains(job):
        return "megatron" if "megatron" in type(job.engine).__module__ else "torch"
    return "torch" if type(job).__module__.startswith("nemo_vfm.nemo.") else ""


def _whole_nodes(job: Job) -> int:
    """Of the step that takes most of them."""
    if isinstance(job, Workflow):
        return max(map(_whole_nodes, job.steps.values()))
    return job.whole_nodes() if isinstance(job, WholeNodesJob) else 0


def _sizes(plan: ParallelPlan) -> dict[str, int]:
    return {**dict(zip(AXES, plan.sizes, strict=True)), "virtual": plan.virtual}


def _has_ray(job: Job) -> bool:
    if isinstance(job, Workflow):
        return any(map(_has_ray, job.steps.values()))
    executor = getattr(job, "executor", None)
    return type(executor).__name__ == "Ray" and type(executor).__module__.startswith("nemo_vfm.")
