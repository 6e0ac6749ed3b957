"""Tells a scheduler what a recipe's job needs: its steps, the ranks of each, its phases."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from nemo_vfm.core.types.job import Job, needs_of
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.workflow import Workflow

if TYPE_CHECKING:
    from nemo_vfm.config import ComposedRecipe


def describe(composed: "ComposedRecipe", job: Job | None, missing: Sequence[str], on_gpu: Sequence[str]) -> Json:
    """Everything as one JSON object; the job is None where too much of the recipe is still to be given.

    Addresses: `missing` of values that the user has yet to give, `on_gpu` of components that compute on a GPU.
    """
    from nemo_vfm.config.roots import header

    steps = job.steps if isinstance(job, Workflow) else {} if job is None else {"": job}
    return {
        "name": composed.path.stem, "run_dir": str(composed.run_dir), "header": header(composed.path).title,
        "steps": [_step(name, below, missing, on_gpu) for name, below in steps.items()],
        "missing": list(missing),
    }  # fmt: skip


def _step(name: str, job: Job, missing: Sequence[str], on_gpu: Sequence[str]) -> Json:
    """What `run --only` takes; a job by itself has no name."""
    at = f"steps.{name}." if name else ""
    own = [path for path in missing if path.startswith(at)]
    needs = needs_of(job)
    computes = any(f"{path}.".startswith(at) for path in on_gpu)
    return {
        "name": name, "class": f"{type(job).__module__}.{type(job).__qualname__}", "ranks": needs.ranks,
        "devices": "gpu" if computes else "cpu", "degrees": dict(needs.degrees), "engine": needs.engine,
        "plannable": needs.plannable, "any_nodes": needs.any_nodes,
        "phases": [{"name": one.name, "ranks": one.ranks, "degrees": dict(one.degrees)} for one in needs.phases],
        "whole_nodes": needs.whole_nodes, "ray": needs.ray, "rounds": needs.rounds, "missing": own,
    }  # fmt: skip
