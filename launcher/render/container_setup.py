"""Renders the lines of a script that install what a container's image lacks, once for all nodes of the job."""

from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path

from launcher.render.job import SlurmJob
from launcher.render.quoting import quoted

_FAILED = 2  # as of a recipe that is wrong: it would fail again


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
    call = [" ".join(map(quoted, step)), *enter, 'python3 -s -P -c "$setup"', *(quoted(str(word)) for word in words)]
    # Where it is there already, no node unpacks the image for a look at it.
    there = f"[[ -d {quoted(str(folder))} ]]"
    yield from (f"if ! {there} && ! " + " \\\n    ".join(call) + "; then").split("\n")
    yield f"  status={_FAILED}"
    yield "else"
    yield from lines
    yield "fi"
