"""Tells a scheduler what a recipe's job needs: its steps, the ranks of each, its phases."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from nemo_vfm.core.types.job import Job, needs_of
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.workflow import Workflow

if TYPE_CHECKING:
    from nemo_vfm.config import Composed


def describe(composed: "Composed", job: Job | None, missing: Sequence[str], on_gpu: Sequence[str]) -> Json:
    """Everything as one JSON object; the job is None where too much of the recipe is still to be given.

    Addresses: `missing` of values that the user has yet to give, `on_gpu` of components that compute on a GPU.
    """
    from nemo_vfm.config.roots import header

    steps = job.steps if isinstance(job, Workflow) else {} if job is None else {"": job}
    told = []
    for name, below in steps.items():  # what `run --only` takes; a job by itself has no name
        at = f"steps.{name}." if name else ""
        own = [path for path in missing if path.startswith(at)]
        needs = needs_of(below)
        computes = any(f"{path}.".startswith(at) for path in on_gpu)
        told.append({
            "name": name, "class": f"{type(below).__module__}.{type(below).__qualname__}", "ranks": needs.ranks,
            "devices": "gpu" if computes else "cpu", "degrees": dict(needs.degrees), "engine": needs.engine,
            "phases": [{"name": one.name, "ranks": one.ranks, "degrees": dict(one.degrees)} for one in needs.phases],
            "whole_nodes": needs.whole_nodes, "ray": needs.ray, "rounds": needs.rounds, "missing": own,
        })  # fmt: skip
    return {
        "name": composed.path.stem, "run_dir": str(composed.run_dir), "header": header(composed.path).title,
        "steps": told,
        "missing": list(missing),
    }  # fmt: skip
