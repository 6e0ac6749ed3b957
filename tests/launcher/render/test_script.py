"""Tests the scripts of harmless and hostile jobs, and what a real bash does with them."""

import json
import shutil
import subprocess
from dataclasses import fields, replace
from pathlib import Path

import pytest

from launcher.render.job import SlurmJob
from launcher.render.profile import ProfileSettings
from launcher.render.script import script
from launcher.request.cluster import Apptainer, NodeCheck, Pyxis, Slurm
from tests.launcher.render.test_quoting import HOSTILE, PRINTABLE
from tests.support.slurm_jobs import GOLDEN, golden_jobs, run, small_job

CANARY = "canary-8c1f-value"
RENEW = "if that is meant: python -m tests.support.slurm_jobs, and look at the difference"


def options(text: str) -> list[str]:
    """The lines that sbatch reads."""
    return [line for line in text.splitlines() if line.startswith("#SBATCH")]


@pytest.mark.parametrize("stem", golden_jobs())
def test_the_script_of_each_cluster_is_the_one_that_was_looked_at(stem):
    assert script(golden_jobs()[stem]) == (GOLDEN / f"{stem}.sh").read_text(), RENEW


def test_no_golden_script_is_left_over():
    assert {file.stem for file in GOLDEN.glob("*")} == set(golden_jobs())


@pytest.mark.slow  # shellcheck reads every golden script
def test_shellcheck_has_nothing_to_say_of_any_script(tmp_path: Path):
    if shutil.which("shellcheck") is None:
        pytest.skip("no shellcheck on this machine; on Debian and Ubuntu: apt-get install shellcheck")
    hostile = tmp_path / "hostile.sh"
    hostile.write_text(script(_hostile(tmp_path, '; it\'s "so" & so')))
    done = subprocess.run(
        ["shellcheck", hostile, *sorted(GOLDEN.glob("*.sh"))], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout


def test_every_argument_of_a_cluster_and_of_a_job_changes_the_script(tmp_path: Path):
    cluster = Slurm(cpu_nodes=1, cpus_per_cpu_node=4, container=Apptainer(image="i.sif"))
    job = small_job(tmp_path, cluster, gpus_per_node=1, nodes=2, degrees={"shard": 2}, engine="torch", gpu="h100")
    of_cluster = {
        "time": "1:00:00", "partition": "p", "account": "p", "qos": "p", "reservation": "p", "constraint": "p",
        "exclude": ("n1",), "exclusive": False, "gpu_request": "gres", "segment": 2, "cpu_nodes": 2,
        "cpus_per_cpu_node": 8, "cpu_partition": "p", "restart": "resubmit", "cpu_bind": "cores", "interface": "ib0",
        "ib_timeout": 20, "node_check": NodeCheck(), "modules": ("m",), "source": Path("/s"), "options": {"o": "1"},
        "step_options": {"o": None}, "environment": {"E": "1"}, "secrets": {"S": Path("/s")}, "container": None,
    }  # fmt: skip
    of_job = {
        "name": "other", "run_id": "1", "folder": tmp_path / "f", "run_dir": tmp_path / "r", "recipe": tmp_path / "o",
        "workdir": tmp_path / "w", "title": "t", "command": ("c",), "words": ("--w",), "step": "s", "nodes": 3,
        "setup": ("x",), "tasks_per_node": 2, "gpus_per_node": 2, "cpus_per_task": 5, "memory_gb": 7, "gpu": "b200",
        "degrees": {"tensor": 2}, "engine": "", "silence_s": 60.0, "lead_s": 600, "max_restarts": 9,
        "module_path": (tmp_path,), "needed": ("N",), "mpi": "pmix", "ray": True, "profile": ProfileSettings(),
    }  # fmt: skip
    of_ray = ("cpu_nodes", "cpus_per_cpu_node", "cpu_partition")
    changed = {name: replace(job, cluster=replace(cluster, **{name: value}), ray=name in of_ray)
               for name, value in of_cluster.items()}  # fmt: skip
    changed |= {f"job's {name}": replace(job, **{name: value}) for name, value in of_job.items()}
    texts = {name: script(one) for name, one in {"": job, **changed}.items()}
    assert len(set(texts.values())) == len(texts), [name for name, text in texts.items() if text == texts[""]]
    of_plan = {"gpu", "gpus_per_node", "cpus_per_node", "memory_gb", "mpi", "rank_timeout_s", "max_at_once"}
    assert of_cluster.keys() | of_plan == {one.name for one in fields(Slurm)}, "add what is new to one of the two"
    of_arrays = {"array", "task_words", "task_runs", "cluster"}
    assert of_job.keys() | of_arrays == {one.name for one in fields(job)}, "add what is new to one of the two"


def test_gpus_of_one_nvlink_domain_are_one_node_to_the_stages_of_a_pipeline(tmp_path: Path):
    degrees, found = {"pipeline": 2, "shard": 4}, []
    for segment, gpus in ((None, 8), (None, 4), (2, 4), (2, 2)):
        job = small_job(tmp_path, Slurm(segment=segment), nodes=4, tasks_per_node=gpus, gpus_per_node=gpus, gpu="gb200",
                        engine="torch", degrees=degrees)  # fmt: skip
        found.append("NCCL_P2P_NET_CHUNKSIZE" in script(job))
    assert found == [False, True, False, True]


def test_the_same_job_gives_the_same_text_whatever_the_environment_says(tmp_path: Path, monkeypatch):
    before = script(small_job(tmp_path))
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    monkeypatch.setenv("WANDB_API_KEY", CANARY)
    monkeypatch.chdir(tmp_path)
    assert script(small_job(tmp_path)) == before


def test_one_line_does_the_work_and_its_words_are_the_jobs(tmp_path: Path):
    job = small_job(tmp_path, words=("--trust", "x y", "a='b'"))
    done = run(job, tmp_path / "fakes")
    assert done.steps == [
        ["--export=ALL", "--cpus-per-task=4", "nemo-vfm", "run", str(job.recipe), f"run_dir={job.run_dir}", *job.words]
    ]
    assert done.status == 0


@pytest.mark.parametrize("status", [2, 3, 69, 1])
def test_the_status_of_the_work_is_that_of_the_job(tmp_path: Path, status):
    done = run(small_job(tmp_path, max_restarts=1), tmp_path / "fakes", FAKE_STATUS=str(status))
    assert done.status == status


def test_variables_reach_the_work_byte_by_byte_and_keep_their_names(tmp_path: Path):
    wanted = {f"value_{number}": text for number, text in enumerate(HOSTILE)} | {"Mixed_Case": "1", "_x": "2"}
    done = run(small_job(tmp_path, Slurm(environment=wanted)), tmp_path / "fakes")
    assert {name: done.variables[0].get(name) for name in wanted} == wanted
    assert not list(tmp_path.rglob("canary"))


def test_what_a_cluster_says_replaces_what_was_derived_and_null_leaves_it_out(tmp_path: Path):
    job = small_job(tmp_path, Slurm(environment={"PYTHONUNBUFFERED": "0", "HF_HUB_OFFLINE": None}))
    assert script(job).count("PYTHONUNBUFFERED") == 1 and "HF_HUB_OFFLINE" not in script(job)
    assert run(job, tmp_path / "fakes").variables[0]["PYTHONUNBUFFERED"] == "0"


def _hostile(folder: Path, text: str) -> SlurmJob:
    """A job that has the text wherever somebody may write one."""
    plain = text if "/" not in text and text == text.strip() else "plain"
    cluster = Slurm(
        partition=text, account=text, qos=text, reservation=text, constraint=text, exclude=[text], mpi=text,
        container=Apptainer(image=f"/images/{text}"), modules=[text], options={"licenses": text},
        step_options={"network": text}, environment={"VALUE": text}, secrets={"KEY": folder / "no such file" / text},
    )  # fmt: skip
    return small_job(
        folder, cluster, name=plain, title=text, run_id=text, words=(text, f"a={text}"), command=("nemo-vfm", text),
        recipe=folder / text / "r.yaml", mpi=text, gpu=text, array=1, task_words=((text,),),
    )  # fmt: skip


@pytest.mark.parametrize("text", PRINTABLE)
def test_nothing_hostile_is_run_wherever_it_stands_and_srun_gets_it_as_it_is(tmp_path: Path, text):
    job = replace(_hostile(tmp_path, text), cluster=replace(_hostile(tmp_path, text).cluster, secrets={}))
    done = run(job, tmp_path / "fakes", SLURM_ARRAY_TASK_ID="0", SLURM_ARRAY_JOB_ID="7")
    inside = [
        "apptainer",
        "exec",
        "--no-eval",
        "--bind",
        f"{tmp_path}:{tmp_path}",
        "--pwd",
        str(tmp_path),
        f"/images/{text}",
    ]
    command = ["nemo-vfm", text, "run", str(job.recipe), f"run_dir={job.run_dir}", text, f"a={text}", text]
    assert done.steps == [
        ["--export=ALL", "--cpus-per-task=4", f"--mpi={text}", f"--network={text}", *inside, *command]
    ]
    assert (tmp_path / "fakes" / "module").read_text() == f"load\0{text}\0"
    assert not list(tmp_path.rglob("canary"))


@pytest.mark.parametrize("text", HOSTILE)
def test_words_with_line_breaks_reach_the_work_and_add_no_option(tmp_path: Path, text):
    job = small_job(tmp_path, words=(text,), title=text, run_id="x")
    done = run(job, tmp_path / "fakes")
    assert done.steps[0][-1] == text
    assert len(options(script(job))) == len(options(script(small_job(tmp_path))))
    assert not list(tmp_path.rglob("canary"))


@pytest.mark.parametrize("field", ["partition", "account", "qos", "reservation", "constraint", "exclude", "options"])
def test_no_line_break_in_an_options_value_begins_another_option(tmp_path: Path, field):
    text = "x\n#SBATCH --uid=0\n"
    value = {"exclude": [text], "options": {"licenses": text}}.get(field, text)
    with pytest.raises(ValueError, match="line break"):
        script(small_job(tmp_path, Slurm(**{field: value})))


@pytest.mark.parametrize("folder", ["a b", "50%j", "$(touch canary)", "quo'te", 'quo"te', "ünï", "-x", "a;b", "#"])
def test_a_job_may_stand_in_a_folder_of_any_name(tmp_path: Path, folder):
    (tmp_path / folder).mkdir()
    job = small_job(tmp_path / folder)
    done = run(job, tmp_path / "fakes", "-x")
    assert done.steps[0][-1] == f"run_dir={job.run_dir}"
    assert "0123456789ab" in script(job) and (job.folder / "attempts.tsv").read_text().count("\n") == 1
    assert not list(tmp_path.rglob("canary"))


def test_a_folder_whose_name_slurm_would_read_otherwise_is_refused(tmp_path: Path):
    with pytest.raises(ValueError, match="backslash"):
        script(small_job(tmp_path / "back\\slash"))
    with pytest.raises(ValueError, match="colon"):
        script(small_job(tmp_path, module_path=(tmp_path / "a:b",)))


def test_a_secret_reaches_the_work_and_nothing_that_anybody_reads(tmp_path: Path):
    file = tmp_path / "key"
    file.write_text(f"{CANARY}\nsecond line\n")
    file.chmod(0o600)
    job = small_job(tmp_path, Slurm(secrets={"WANDB_API_KEY": file}), needed=("MLFLOW_TOKEN",))
    done = run(job, tmp_path / "fakes", "-x", MLFLOW_TOKEN=f"{CANARY}-2", FAKE_STATUS="1")
    assert done.variables[0]["WANDB_API_KEY"] == CANARY and done.variables[0]["MLFLOW_TOKEN"] == f"{CANARY}-2"
    assert "srun --export=ALL" in done.said, "bash has told each command"
    kept = [path for path in job.folder.rglob("*") if path.is_file()]
    assert CANARY not in done.said and len(kept) >= 3
    assert not [path for path in kept if CANARY in path.read_text()]
    assert CANARY not in json.dumps(done.steps)


def test_a_secret_without_a_last_line_break_is_whole_and_one_of_the_shell_is_not_taken_in_its_place(tmp_path: Path):
    file = tmp_path / "key"
    file.write_text(CANARY)
    job = small_job(tmp_path, Slurm(secrets={"KEY": file}))
    assert run(job, tmp_path / "fakes", KEY="another").variables[0]["KEY"] == CANARY
    file.unlink()
    done = run(job, tmp_path / "more", KEY="another")
    assert done.status == 2 and done.steps == [] and "not set: KEY" in done.said


def test_a_variable_that_nobody_exported_ends_the_job_before_its_work_and_is_written_down(tmp_path: Path):
    job = small_job(tmp_path, needed=("NEVER_EXPORTED",))
    done = run(job, tmp_path / "fakes")
    assert done.status == 2 and done.steps == [] and "NEVER_EXPORTED" in done.said
    assert "\tconfiguration\t" in (job.folder / "attempts.tsv").read_text()


@pytest.mark.parametrize("name", ["status", "job", "launch", "run", "told"])
def test_a_variable_that_the_script_counts_with_is_refused(tmp_path: Path, name):
    with pytest.raises(ValueError, match=f"a variable {name} itself"):
        script(small_job(tmp_path, Slurm(environment={name: "x"})))


def test_pyxis_gets_the_folders_once_and_keeps_our_variables_before_those_of_the_image(tmp_path: Path):
    cluster = Slurm(container=Pyxis(image="/i.sqsh", mounts={"/data": "/d"}, writable=True), environment={"A": "1"})
    outside = tmp_path / "other"
    job = small_job(tmp_path, cluster, run_dir=outside, needed=("HOME",))
    step = run(job, tmp_path / "fakes").steps[0]
    assert "--container-image=/i.sqsh" in step and "--container-writable" in step
    assert f"--container-mounts={tmp_path}:{tmp_path},/data:/d" in step
    (names,) = [word for word in step if word.startswith("--container-env=")]
    assert {"A", "PYTHONUNBUFFERED", "HOME"} <= set(names.partition("=")[2].split(","))
    assert step.index(f"--container-workdir={tmp_path}") < step.index("nemo-vfm")


@pytest.mark.parametrize(
    ("program", "prefix"), [("apptainer", "APPTAINERENV_"), ("/opt/singularity", "SINGULARITYENV_")]
)
def test_apptainer_lets_our_variables_replace_those_of_the_image(tmp_path: Path, program: str, prefix: str):
    key = tmp_path / "key"
    key.write_text("$ecret `x`\n")
    cluster = Slurm(container=Apptainer(image="i.sif", program=program), environment={"A": "a b", "E": ""},
                    secrets={"KEY": key})  # fmt: skip
    (variables,) = run(small_job(tmp_path, cluster, needed=("GIVEN",)), tmp_path / "fakes", GIVEN="1").variables
    wanted = {"A": "a b", "E": "", "KEY": "$ecret `x`", "GIVEN": "1", "PYTHONNOUSERSITE": "1"}
    assert wanted.items() <= {name.removeprefix(prefix): text for name, text in variables.items() if
                              name.startswith(prefix)}.items()  # fmt: skip


def test_folders_that_are_not_inside_one_another_are_all_mounted(tmp_path: Path):
    job = small_job(tmp_path, Slurm(container=Pyxis(image="i")), workdir=Path("/desk"), module_path=(Path("/code"),))
    mounts = f"/code:/code,/desk:/desk,{job.run_dir}:{job.run_dir}"
    assert f"--container-mounts={mounts}" in script(job)


def test_each_task_of_an_array_gets_its_own_words(tmp_path: Path):
    words = (("shard=0/2",), ("shard=1/2", "x y"))
    job = small_job(tmp_path, Slurm(max_at_once=4), array=2, task_words=words, words=("all",))
    assert "#SBATCH --array=0-1%4" in script(job) and "%x-%A_%a.out" in script(job)
    for number in (0, 1):
        done = run(job, tmp_path / str(number), SLURM_ARRAY_TASK_ID=str(number), SLURM_ARRAY_JOB_ID="7")
        assert done.steps[0][-1 - len(words[number]) :] == ["all", *words[number]]


def test_a_ray_cluster_is_begun_before_the_work_and_ended_behind_it(tmp_path: Path):
    job = small_job(tmp_path, ray=True, gpus_per_node=2)
    done = run(job, tmp_path / "fakes", "-x", SLURM_JOB_ID="5003")
    work, ray = done.steps  # Ray's own step ends last, when the script closes its pipe
    assert work[:5] == ["--export=ALL", "--cpus-per-task=4", "--overlap", "--nodes=1", "--ntasks=1"]
    assert ray[-7:] == ["ray", "ray", "start", "--num-cpus=4", "--num-gpus=2", "--disable-usage-stats", "--block"]
    assert done.variables[0]["RAY_ADDRESS"] == "127.0.0.1:25003" == done.variables[1]["RAY_ADDRESS"]
    assert done.status == 0 and not list(job.folder.glob("*.token"))


def test_nobody_else_reads_the_token_of_a_ray_cluster(tmp_path: Path):
    job = small_job(tmp_path, ray=True, command=("bash", "-c", "true"))
    kept = script(job).replace('rm -f "$RAY_AUTH_TOKEN_PATH"', "true")
    done = run(job, tmp_path / "fakes", "-x", text=kept)
    (token,) = job.folder.glob("*.token")
    assert token.stat().st_mode & 0o777 == 0o600 and len(token.read_text()) == 64
    assert token.read_text() not in done.said and done.variables[0]["RAY_AUTH_MODE"] == "token"


@pytest.mark.parametrize(("nodes", "segment"), [(18, 18), (16, 16), (36, 18), (20, 10), (1, 1), (72, 18)])
def test_nodes_of_a_rack_are_asked_for_in_equal_groups(tmp_path: Path, nodes, segment):
    assert f"#SBATCH --segment={segment} " in script(small_job(tmp_path, Slurm(segment=18), nodes=nodes))


def test_nodes_that_no_equal_groups_within_racks_make_are_refused(tmp_path: Path):
    with pytest.raises(ValueError, match=r"19 nodes cannot be cut .* ask for 18 or 36 nodes"):
        script(small_job(tmp_path, Slurm(segment=18), nodes=19))


@pytest.mark.parametrize(
    ("request_by", "line"), [("gpus_per_node", "--gpus-per-node=4"), ("gres", "--gres=gpu:4"), ("none", None)]
)
def test_gpus_are_asked_for_as_the_cluster_knows_them(tmp_path: Path, request_by, line):
    job = small_job(tmp_path, Slurm(gpu_request=request_by), gpus_per_node=4, tasks_per_node=4)
    asked = [one for one in options(script(job)) if one.startswith(("#SBATCH --gpu", "#SBATCH --gres"))]
    assert asked == ([f"#SBATCH {line}"] if line else [])
    placed = ["block:block" in script(replace(job, gpus_per_node=gpus, tasks_per_node=gpus)) for gpus in (1, 2)]
    assert placed == [False, True]  # of one process a node there is nothing to place


@pytest.mark.parametrize(
    ("change", "sentence"),
    [({"name": "a/b"}, "log file"), ({"nodes": 0}, "nodes is 0"), ({"recipe": Path("r.yaml")}, "absolute paths"),
     ({"array": 3, "task_words": ((),)}, "1 lists of words for an array of 3")],
)  # fmt: skip
def test_a_job_that_cannot_be_is_refused(tmp_path: Path, change, sentence):
    with pytest.raises(ValueError, match=sentence):
        small_job(tmp_path, **change)
