"""Finds names in a job's mappings that nothing reads, such as a misspelt prompt: what stands there would be lost."""

from collections.abc import Iterator

from nemo_vfm.config import Composed, Problem
from nemo_vfm.config.recipe_errors import did_you_mean
from nemo_vfm.config.roots import shipped
from nemo_vfm.config.tree import find, walk
from nemo_vfm.config.yaml_source import read
from nemo_vfm.core.types.job import Job, needs_of
from nemo_vfm.workflow import Workflow


def unread_names(composed: Composed, job: Job, step: tuple[str, ...] = ()) -> Iterator[Problem]:
    """Each that no ingredient of ours has, since those serve several jobs, and each of which something was typed."""
    if isinstance(job, Workflow):
        for name, below in job.steps.items():
            yield from unread_names(composed, below, (*step, "steps", name))
    else:
        for argument, names in needs_of(job).names_read.items():
            for name in sorted(getattr(job, argument).keys() - names):
                address = (*step, argument, name)
                node = find(composed.root, path := ".".join(address))
                typed = [] if node is None else [one.mark for _, one in walk(node) if one.mark.source.is_typed]
                files = (shipped("conf") / argument).rglob("*.yaml")
                if typed or all(name not in read(file).items for file in files):
                    text = f"nothing reads {path}: this job reads {', '.join(sorted(names)) or 'none'}"
                    mark = typed[0] if typed else composed.written(address)
                    yield Problem(path, mark, text + did_you_mean(name, names))
