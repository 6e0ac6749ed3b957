"""Renders how a job's tasks enter their container: options for srun, and the words before the command."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from launcher.render.job import SlurmJob
from launcher.render.quoting import in_bind
from launcher.request.cluster import Apptainer, Pyxis


def options(job: SlurmJob, variables: Sequence[str]) -> list[str]:
    """What srun is told of the container, by pyxis; nothing where another program or none is used.

    Args:
        variables: those that the script exports: an image has some of the same names, and its own would win.
    """
    container = job.cluster.container
    if not isinstance(container, Pyxis):
        return []
    found = [f"--container-image={container.image}", f"--container-mounts={','.join(_mounts(job))}",
             f"--container-workdir={job.workdir}", "--no-container-mount-home",
             "--no-container-entrypoint"]  # fmt: skip
    found += ["--container-writable"] if container.writable else []
    return [*found, f"--container-env={','.join(variables)}"] if variables else found


def before(job: SlurmJob) -> list[str]:
    """The words that start the container in each task."""
    container = job.cluster.container
    if not isinstance(container, Apptainer):
        return []
    nvidia = ["--nv"] if job.gpus_per_node else []
    binds = [word for mount in _mounts(job) for word in ("--bind", mount)]
    # --no-eval: else a `$` in the value of a variable would be expanded once more.
    return [container.program, "exec", "--no-eval", *nvidia, *binds, "--pwd", str(job.workdir), container.image]


def forwarding(job: SlurmJob, variables: Sequence[str]) -> Iterator[str]:
    """Lines that let our variables replace those of the same name in an image, where Apptainer starts it."""
    container = job.cluster.container
    if not isinstance(container, Apptainer):
        return
    prefix = "SINGULARITYENV_" if Path(container.program).name == "singularity" else "APPTAINERENV_"
    yield "# -- An image's own variables would replace those above, but for what has this prefix."
    yield f"for name in {' '.join(variables)}; do"
    yield f'  [[ -v $name ]] && export "{prefix}$name=${{!name}}"'
    yield "done"


def _mounts(job: SlurmJob) -> Iterator[str]:
    """`outside:inside`: the folders of the launch, which keep their names, and those that the cluster's file adds."""
    container = job.cluster.container
    assert container is not None
    ours = sorted({job.workdir, job.run_dir, job.folder, *job.module_path})
    for folder in ours:
        if not any(_holds(other, folder) for other in ours):
            yield f"{in_bind(str(folder))}:{in_bind(str(folder))}"
    if job.ray:  # its processes and ours are in containers of their own, and meet at sockets there
        yield "/tmp:/tmp"  # noqa: S108
    for outside, inside in container.mounts.items():
        yield f"{outside}:{inside}"


def _holds(outer: Path, inner: Path) -> bool:
    return outer != inner and inner.is_relative_to(outer)
