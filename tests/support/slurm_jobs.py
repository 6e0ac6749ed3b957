"""Makes small Slurm jobs and one for each of our clusters, and runs their scripts under a fake srun.

`python -m tests.support.slurm_jobs` rewrites tests/launcher/golden. Look at the difference before you commit it.
"""

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from launcher.render.containers import environment_folder
from launcher.render.job import SlurmJob
from launcher.render.profile import ProfileSettings
from launcher.render.script import script
from launcher.request.cluster import Apptainer, Local, Pyxis, Slurm
from nemo_vfm.config import Roots, ingredient, trust_list
from tests.support.repository import ROOT

GOLDEN = ROOT / "tests/launcher/golden"
#: Fakes of Slurm's commands: srun keeps its words and variables, says and ends as it is told, the others say little.
_FAKES = {
    "srun": """[[ "$*" == *ray_node* ]] && echo "Ray runtime started" && cat
printf '%s' "${FAKE_SAYS-}"
printf '%s\\0' "$@" > "$FAKES/argv.$$"; env -0 > "$FAKES/env.$$"; exit "${FAKE_STATUS:-0}" """,
    "scontrol": """echo "$@" >> "$FAKES/scontrol.asked"  # not its own file, which bash goes on reading
[[ $1 == requeue && -v FAKE_REFUSES ]] && exit 1
[[ $1 == show && $2 == job ]] && echo "JobId=7 Requeue=1 ExcNodeList=${FAKE_EXCLUDED:-(null)} NodeList=n1"
[[ $1 == show && $2 == hostnames ]] && echo n1
[[ $1 == show && $2 == node ]] && echo "NodeName=n1 NodeAddr=127.0.0.1 Version=22"
true""",
    "sbatch": """[[ $FAKE_REFUSES == *sbatch* ]] && exit 1
printf '%s\\0' "$@" > "$FAKES/asked"; env -0 > "$FAKES/asked.env"; echo 8""",
    "squeue": """[[ "$*" == *%T* ]] || exit 1
echo >> "$FAKES/states"; (( $(wc -l < "$FAKES/states") > ${FAKE_SILENT:-0} )) && echo RUNNING""",
    "sleep": "true",
    "sinfo": "true",
    "module": """printf '%s\\0' "$@" > "$FAKES/module" """,
}
_SLURM_SAYS = {
    "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1", "SLURM_JOB_NUM_NODES": "1", "SLURM_JOB_PARTITION": "debug",
}  # fmt: skip


def cluster_named(name: str) -> Slurm | Local:
    """What conf/cluster says of it."""
    kind = Local if name == "local" else Slurm
    return ingredient("cluster", name, kind, trust=(*trust_list(), "launcher."))


def cluster_names() -> list[str]:
    """Every cluster that we bring."""
    return sorted(Roots.standard().choices("cluster"))


def small_job(folder: Path, cluster: Slurm | None = None, **changes: object) -> SlurmJob:
    """A process on a CPU node, below a folder that exists."""
    run_dir = folder / "runs" / "small"
    job = SlurmJob(
        name="small", run_id="0123456789ab", folder=run_dir / "launch", run_dir=run_dir,
        recipe=run_dir / "launch" / "recipe.yaml", workdir=folder, title="small: a job for tests", nodes=1,
        command=("nemo-vfm",), tasks_per_node=1, gpus_per_node=0, cpus_per_task=4, cluster=cluster or Slurm(),
    )  # fmt: skip
    return replace(job, **changes)


@dataclass(frozen=True, slots=True)
class Done:
    """What a script did.

    Args:
        status: its exit status.
        said: all that it printed.
        steps: the words of each srun.
        variables: the environment of each srun.
    """

    status: int
    said: str
    steps: list[list[str]]
    variables: list[dict[str, str]]


def run(job: SlurmJob, fakes: Path, *options: str, text: str = "", **environment: str) -> Done:
    """Run a job's script in a real bash, where Slurm's commands are false.

    Args:
        fakes: an empty folder.
        options: of bash.
        text: what is run instead of the job's script.
        environment: what the shell that submitted had.
    """
    _write_fakes(fakes)
    (job.folder / "logs").mkdir(parents=True, exist_ok=True)
    file, log = job.folder / "job.sh", job.folder / "logs" / "log"
    file.write_text(text or script(job), encoding="utf-8")
    said = {"PATH": f"{fakes}:{os.environ['PATH']}", "FAKES": str(fakes), "HOME": str(fakes), "LC_ALL": "C.UTF-8"}
    with log.open("wb") as out:
        done = subprocess.run(
            ["bash", *options, file], cwd=fakes, env={**said, **_SLURM_SAYS, **environment}, stdout=out, stderr=out,
            stdin=subprocess.DEVNULL, timeout=60, check=False,
        )  # fmt: skip
    return Done(done.returncode, log.read_text(), [*map(_words, _kept(fakes, "argv"))],
                [dict(word.split("=", 1) for word in _words(file)) for file in _kept(fakes, "env")])  # fmt: skip


def golden_jobs() -> Mapping[str, SlurmJob]:
    """File name -> job, for every cluster, and for what goes otherwise than a training does."""
    jobs = {name: _training(name) for name in cluster_names() if name not in ("cpu_slurm", "local")}
    cpu = cluster_named("cpu_slurm")
    assert isinstance(cpu, Slurm)
    curation = replace(_training("dgx_h100"), name="clips", title="curation/clips: clips from films", gpu=None, nodes=1,
                       tasks_per_node=1, gpus_per_node=0, cpus_per_task=64, degrees={}, engine="", cluster=cpu,
                       command=("/opt/venv/bin/python", "-P", "-m", "nemo_vfm"), words=(), needed=())  # fmt: skip
    mixed = replace(_training("dgx_h100"), name="clips", title="curation/full: clips from films", nodes=2, ray=True,
                    tasks_per_node=1, cpus_per_task=112, degrees={}, engine="", words=(), needed=())  # fmt: skip
    nodes = replace(mixed.cluster, cpu_nodes=8, cpus_per_cpu_node=64, cpu_partition="cpu")
    mixed = replace(mixed, cluster=nodes)
    shares = tuple(("run_dir=/lustre/video/runs/dit/shards/" + str(n), f"shard={n}/4") for n in range(4))
    return {
        **jobs, "cpu_slurm": curation, "array": replace(curation, array=4, task_words=shares), "sweep": _sweep(),
        "profile": replace(_training("dgx_h100"), profile=ProfileSettings(ranks=(0, 8))),
        "ray": replace(curation, nodes=4, ray=True), "heterogeneous": mixed, "setup": _with_setup(),
    }  # fmt: skip


def _sweep() -> SlurmJob:
    """Two trainings of 64 GPUs, each with a rate of its own."""
    job, names = _training("dgx_b200"), ("lr=1e-4", "lr=3e-4")
    folder = Path("/lustre/video/runs/dit-sweep")
    runs = tuple((folder / "launch/points" / name / "dit.yaml", folder / name) for name in names)
    return replace(job, name="dit-sweep", run_dir=folder, folder=folder / "launch",
                   module_path=(folder / "launch/code",), recipe=runs[0][0], array=2, task_runs=runs)  # fmt: skip


def _with_setup() -> SlurmJob:
    """In an image without nemo_vfm."""
    job, wanted = _training("dgx_h100"), ("av<19,>=14", "torch<2.14,>=2.11")
    image = Pyxis(image="registry.example.org#nvidia/pytorch:26.06-py3", setup="pip")
    python = environment_folder(job.folder, image.image, wanted) / "bin/python"
    return replace(job, command=(str(python), "-P", "-m", "nemo_vfm"), setup=wanted,
                   cluster=replace(job.cluster, container=image))  # fmt: skip


def _training(name: str) -> SlurmJob:
    """A training of 144 or 64 GPUs; one cluster has pyxis, one Apptainer, and one trains with Megatron's layers."""
    cluster = cluster_named(name)
    assert isinstance(cluster, Slurm) and cluster.gpus_per_node and cluster.cpus_per_node
    image = {"dgx_h100": Pyxis(image="/lustre/images/nemo_vfm.sqsh", mounts={"/lustre/data": "/data"}),
             "dgx_h200": Apptainer(image="/lustre/images/nemo_vfm.sif")}.get(name)  # fmt: skip
    keys = {"WANDB_API_KEY": Path("/lustre/video/.keys/wandb")} if name == "dgx_h100" else {}
    run_dir, nodes = Path("/lustre/video/runs/dit"), 36 if cluster.segment else 8
    return SlurmJob(
        name="dit", run_id="0123456789ab", folder=run_dir / "launch", run_dir=run_dir,
        recipe=run_dir / "launch" / "recipe.yaml", workdir=Path("/lustre/video"),
        title="diffusion/dit_7b_8k: a DiT of 7 billion weights on sequences of 8K", words=("--trust", "our_package"),
        command=("nemo-vfm",) if image else ("/opt/venv/bin/python", "-P", "-m", "nemo_vfm"), nodes=nodes,
        tasks_per_node=cluster.gpus_per_node, gpus_per_node=cluster.gpus_per_node,
        cpus_per_task=cluster.cpus_per_node // cluster.gpus_per_node, gpu=cluster.gpu, lead_s=420,
        degrees={"tensor": 2, "context": 2, "pipeline": 2, "virtual": 2, "shard": nodes * cluster.gpus_per_node // 8},
        engine="megatron" if name == "dgx_a100" else "torch", module_path=(run_dir / "launch" / "code",),
        needed=("MLFLOW_TRACKING_TOKEN",) if name == "dgx_h100" else (), mpi="pmix" if name == "dgx_h100" else "",
        cluster=replace(cluster, account="video", container=image, secrets=keys),
    )  # fmt: skip


def _write_fakes(fakes: Path) -> None:
    fakes.mkdir(parents=True, exist_ok=True)
    for name, body in _FAKES.items():
        (fakes / name).write_text(f"#!/bin/bash\n{body}\n")
        (fakes / name).chmod(0o700)


def _kept(fakes: Path, what: str) -> list[Path]:
    return sorted(fakes.glob(f"{what}.*"), key=lambda file: file.stat().st_mtime_ns)


def _words(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8", errors="surrogateescape").split("\0")[:-1]


if __name__ == "__main__":
    for stem, one in golden_jobs().items():
        (GOLDEN / f"{stem}.sh").write_text(script(one), encoding="utf-8")
