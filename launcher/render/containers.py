"""Renders how a job's tasks enter their container, and how what its image lacks is installed, once for all nodes."""

from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path

from launcher.render.job import SlurmJob
from launcher.render.quoting import in_bind, quote
from launcher.request.cluster import Apptainer, Pyxis

_FAILED = 2  # as of a recipe that is wrong: it would fail again


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
        if not any(other != folder and folder.is_relative_to(other) for other in ours):
            yield f"{in_bind(str(folder))}:{in_bind(str(folder))}"
    if job.ray:  # its processes and ours are in containers of their own, and meet at sockets there
        yield "/tmp:/tmp"  # noqa: S108
    for outside, inside in container.mounts.items():
        yield f"{outside}:{inside}"


def environment_folder(launch: Path, image: str, wanted: Sequence[str]) -> Path:
    """Below the launch folder; another image, or other requirements, make another one."""
    return launch / f"environment-{sha256(chr(0).join((image, *wanted)).encode()).hexdigest()[:12]}"


def around(job: SlurmJob, enter: Sequence[str], lines: Iterable[str]) -> Iterator[str]:
    """The lines of the work, which are not begun where pip fails.

    Args:
        enter: options of srun and words that lead into the job's container, quoted.
    """
    if not job.setup:
        yield from lines
        return
    assert job.cluster.container is not None
    program = Path(__file__).with_name("setup_program.py").read_text(encoding="utf-8")
    step = ["srun", "--export=ALL", "--nodes=1", "--ntasks=1", f"--cpus-per-task={job.cpus_per_task}"]
    step += [f"--mpi={job.mpi}"] if job.mpi else []
    folder = environment_folder(job.folder, job.cluster.container.image, job.setup)
    words = [folder, job.folder / "packages.txt", *job.setup]
    yield "# -- What the image lacks, installed once for all nodes, beside this script: cluster.container.setup."
    yield "read -r -d '' setup << 'SETUP'"
    yield from program.splitlines()
    yield "SETUP"
    call = [" ".join(map(quote, step)), *enter, 'python3 -s -P -c "$setup"', *(quote(str(word)) for word in words)]
    # Where it is there already, no node unpacks the image for a look at it.
    there = f"[[ -d {quote(str(folder))} ]]"
    yield from (f"if ! {there} && ! " + " \\\n    ".join(call) + "; then").split("\n")
    yield f"  status={_FAILED}"
    yield "else"
    yield from lines
    yield "fi"
