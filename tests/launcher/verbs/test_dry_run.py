"""Tests what a dry run prints without Slurm, and that it writes nothing."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from launcher.cli import main
from launcher.plan import preflight
from launcher.plan.chain import Share
from launcher.plan.launch import composed_text
from launcher.request.cluster import Slurm
from nemo_vfm.config import compose
from tests.support.repository import ROOT


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked_here) -> Path:
    """An empty working directory, and no Slurm on the path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/nonexistent")
    return tmp_path


def left(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*"))


def dry(*words: str) -> list[str]:
    """The words of a dry run of the films recipe, with its script."""
    return ["submit", "synthetic/shapes", *words, "--dry-run", "--print-script"]


def test_a_dry_run_prints_the_script_alone_and_writes_nothing_and_needs_no_slurm(desk, capsys):
    assert main(dry("cluster=dgx_h100", "nodes=1")) == 0
    said = capsys.readouterr()
    assert said.out.startswith("#!/bin/bash\n# shapes: Generate a dozen short videos")
    assert f"run {desk}/runs/shapes/launch/shapes.yaml run_dir={desk}/runs/shapes" in said.out
    assert re.search(r"^job +1 +1 +112 +0 +all +4:00:00$", said.err, re.MULTILINE)
    assert left(desk) == []


def test_a_dry_run_says_what_each_job_takes_and_what_was_found_and_folds_it_on_a_terminal(desk, capsys, monkeypatch):
    said = {}
    for width in ("80", "100000"):
        monkeypatch.setenv("COLUMNS", width)
        assert main(["submit", "quickstart", "cluster=dgx_h100", "cluster.memory_gb=64", "--dry-run"]) == 0
        said[width] = capsys.readouterr().out
    table = [line.split() for line in said["80"].splitlines() if line.endswith("4:00:00")]
    assert [row[0] for row in table] == ["videos", "curate", "encode", "train", "sample", "baseline", "evaluate"]
    assert table[3][1:] == ["1", "1", "112", "1", "64", "GB", "4:00:00"] and table[0][4] == "0"
    assert said["80"].split() == said["100000"].split() and "no PROBLEM was found" in said["80"]
    too_long = [line for line in said["80"].splitlines() if len(line) > 80]
    assert all(str(desk) in line or str(ROOT) in line for line in too_long)  # a path is not cut
    assert "#!/bin/bash" not in said["80"] and left(desk) == []


def test_nobody_submits_by_asking_for_a_script_alone(desk, capsys):
    assert main(["submit", "synthetic/shapes", "cluster=cpu_slurm", "--print-script"]) == 2
    assert "--print-script needs --dry-run" in capsys.readouterr().err and left(desk) == []


def test_what_slurm_would_be_asked_is_a_note_of_a_dry_run_and_a_problem_of_a_submission(desk, capsys):
    (desk / "conf/cluster").mkdir(parents=True)
    (desk / "conf/cluster/ours.yaml").write_text("_target_: launcher.request.cluster.Slurm\ngpu: h100\n")
    words = ["submit", "synthetic/shapes", "cluster=ours", "nodes=3"]  # three nodes may have a GPU each
    before = left(desk)
    assert main([*words, "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "PROBLEM " not in said.replace("no PROBLEM ", "")
    for name in ("gpus_per_node", "cpus_per_node", "mpi"):
        assert f"{name} must come from Slurm, which is not here; give cluster.{name}=" in said
    assert re.search(r"^job +3 +1 +\? ", said, re.MULTILINE)
    assert main(words) == 2 and left(desk) == before
    assert "PROBLEM cluster " in capsys.readouterr().err


def test_the_same_words_give_the_same_bytes_and_other_words_another_run(desk, capsys):
    texts = []
    for words in ((), (), ("seed=1",), ("cluster.time=1:00:00",)):
        assert main(dry("cluster=dgx_h100", *words)) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]
    assert len({text.partition("--comment=")[2].partition("\n")[0] for text in texts}) == 3


def test_a_time_in_minutes_is_a_plain_number(desk, capsys):
    assert main(dry("cluster=dgx_h100", "cluster.time=30")) == 0
    assert "\n#SBATCH --time=30\n" in capsys.readouterr().out


@pytest.mark.slow
def test_a_failed_preflight_is_printed_and_the_dry_run_is_still_ok(desk, capsys):
    words = ["submit", "diffusion/dit_7b_8k", "cluster=dgx_h100", "nodes=3", "--dry-run", "--print-script"]
    assert main(words) == 0
    said = capsys.readouterr()
    assert "PROBLEM recipe" in said.err and "data.shards=VALUE" in said.err
    assert "nodes=3 gives 24 GPUs, 8 a node" in said.err and "use nodes=8" in said.err
    assert said.out.startswith("#!/bin/bash")


def test_a_recipe_too_little_of_which_is_given_to_be_built_says_what_is_missing(desk, capsys):
    words = ["llm/nemotron4_340b", "data.sources.another.folder=/data/another", "cluster=dgx_h100"]
    assert main(["submit", *words, "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "data.sources.english.folder=VALUE" in said and "once these values are set" in said
    assert main(["submit", *words]) == 2 and left(desk) == []


def test_what_would_not_run_is_not_submitted_and_nothing_is_written(desk, capsys):
    assert main(["submit", "diffusion/dit_7b_8k", "cluster=dgx_h100", "nodes=3"]) == 2
    assert "nothing was submitted" in capsys.readouterr().err
    assert left(desk) == []


def test_a_training_gets_its_memory_time_cost_and_storage_before_it_runs(desk, capsys):
    assert main(["submit", "llm/nemotron4_1b", "cluster=dgx_h100", "--dry-run"]) == 0
    said = capsys.readouterr().out
    for words in ("one h100 has to fill", "s a step, estimated", "GPU hours", "checkpoints of"):
        assert words in said


def test_a_variable_may_come_from_the_shell_or_from_a_file_of_secrets_and_else_it_is_missing(tmp_path, monkeypatch):
    (tmp_path / "key").write_text("a value\n")
    (tmp_path / "key").chmod(0o600)
    monkeypatch.setenv("OF_SHELL", "1")
    where, names = Slurm(secrets={"OF_FILE": tmp_path / "key"}), ("OF_SHELL", "OF_FILE", "OF_NOBODY")
    launch = SimpleNamespace(work=SimpleNamespace(missing=()), where=where, variables=names)
    (found,) = preflight._missing(launch)
    assert found.wrong and "OF_NOBODY is not set" in found.text
    (tmp_path / "key").chmod(0o644)
    assert [one.about for one in preflight._missing(launch)] == ["environment", "secrets"]


@pytest.mark.parametrize(
    ("days", "array", "phase", "kept", "words"),
    [
        (0.5, 0, "", 2, ("48 GPU hours: 1,000 steps, 12.0 hours on 4 GPUs", "storage 6 GB: 2 checkpoints of 3 GB")),
        (3.0, 2, "", None, ("96 GPU hours: 2 runs of 1,000 steps, 3.0 days on 4 GPUs",
                            "storage for each of 2 runs 3 GB a checkpoint, and all are kept, in /out")),
        (0.5, 0, "first", 1, ("48 GPU hours: 1,000 steps of the phase first, 12.0 hours on 4 GPUs", "1 checkpoint of")),
    ],
)  # fmt: skip
def test_what_a_plan_says_is_told_in_its_units_for_each_run(days, array, phase, kept, words):
    own = {"memory_bytes": {"total": 3 << 30}, "fits": True, "step_s": 0.25, "gpu_hours": 48.0, "days": days}
    found = {"own": own, "gpu": {"usable_bytes": 4 << 30}, "steps": 1000, "phase": phase,
             "checkpoint_bytes": 3e9, "checkpoints_kept": kept}  # fmt: skip
    share = Share(name="job", ranks=4, nodes=1, tasks_per_node=4, gpus_per_node=4, cpus_per_task=1, on_gpu=True,
                  array=array)  # fmt: skip
    launch = SimpleNamespace(runs=("a", "b")[:array], run_dir="/out")
    said = [f"{one.about} {one.text}" for one in preflight._estimates(found, Slurm(gpu="h100"), share, launch)]
    for text in ("memory 3.0 GiB of the 4.0 that one h100", "time 0.25 s a step, estimated", *words):
        assert any(text in one for one in said), said
    full = {**found, "own": {**own, "fits": False}}
    wrong = [one.about for one in preflight._estimates(full, Slurm(gpu="h100"), share, launch) if one.wrong]
    assert wrong == ["memory"]


@pytest.mark.slow
def test_the_layout_that_is_named_for_another_number_of_gpus_is_one_for_that_number(desk, capsys):
    words = ["submit", "llm/nemotron4_1b", "cluster=dgx_h100", "gpus=16", "--dry-run"]
    assert main(words) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "PROBLEM job gpus=16, but the recipe's layout is for 8" in said
    changes = shlex.split(re.search(r"the best for 16 GPUs, \S+ s a step, is (.*) cluster file", said)[1])
    assert changes and main([*words, *changes]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "job 2 8 14 8 all" in said and "the best for" not in said


@pytest.mark.slow
def test_a_recipe_that_is_wrong_is_said_as_nemo_vfm_says_it_in_a_process_of_its_own(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(dry("cluster=dgx_h100", "cuont=3")) == 2
    assert "takes no argument cuont" in capsys.readouterr().err


def test_a_workflow_is_a_job_a_step_each_with_its_own_size(desk, capsys):
    assert main(["submit", "quickstart", "cluster=dgx_h100", "--dry-run", "--print-script"]) == 0
    said = capsys.readouterr()
    assert said.out.count("#!/bin/bash") == 7
    train = said.out.partition("launch/train.sh\n")[2].partition("# --------")[0]
    videos = said.out.partition("launch/videos.sh\n")[2].partition("# --------")[0]
    assert "--only train" in train and "--gpus-per-node=1" in train
    assert "--only videos" in videos and "--gpus-per-node" not in videos
    (idle,) = [line for line in said.err.splitlines() if "idle on each node" in line]
    assert "8 of 8 by videos, curate, encode, evaluate; 7 of 8 by train, sample" in idle


def test_a_shared_node_keeps_no_gpu_idle_and_not_all_of_its_memory(desk, capsys):
    words = ["submit", "quickstart", "cluster=dgx_h100", "cluster.exclusive=false", "--dry-run", "--print-script"]
    assert main(words) == 0
    said = capsys.readouterr()
    assert "idle on each node" not in said.err
    assert "--mem=" not in said.out and "--exclusive" not in said.out
    assert main([*words, "cluster.memory_gb=64"]) == 0
    assert "--mem=64G" in capsys.readouterr().out


def test_a_key_that_is_typed_is_refused_since_folders_and_scripts_keep_none(desk, capsys):
    key = "canary-7d1f0a-key"
    (desk / "r.yaml").write_text("_target_: nemo_vfm.workflow.Workflow\nsteps: {secret: 'recipe:synthetic/shapes'}\n")
    assert main(["submit", "r.yaml", "cluster=dgx_h100", f"input={key}", f"steps.secret.x={key}", "--dry-run"]) == 2
    said = capsys.readouterr()
    assert "would contain a secret" in said.err and key not in said.out + said.err
    assert left(desk) == [desk / "r.yaml"]


def test_a_variable_that_the_recipe_reads_is_in_the_script_by_name_alone(desk, capsys, monkeypatch):
    monkeypatch.setenv("MY_FOLDER_OF_FILMS", "canary-1b2c3d")
    assert (
        main(
            [
                "submit",
                "curation/clips",
                "cluster=dgx_h100",
                "source.path=${env:MY_FOLDER_OF_FILMS}",
                "--dry-run",
                "--print-script",
            ]
        )
        == 0
    )
    said = capsys.readouterr()
    assert "canary" not in said.out and "MY_FOLDER_OF_FILMS" in said.out


def test_help_comes_at_once_and_without_torch():
    before = os.times()
    code = "import sys; from launcher.cli import main; main(['--help']); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True).returncode == 0
    after = os.times()
    assert sum(after[2:4]) - sum(before[2:4]) < 1  # of the child's own: a busy machine lets it wait longer


@pytest.mark.parametrize(
    ("words", "said"), [(["sumbit"], "did you mean submit"), (["fly"], "there are"), ([], "usage")]
)
def test_a_verb_that_does_not_exist_gets_the_nearest(words, said, capsys):
    assert main(words) == 2
    told = capsys.readouterr()
    assert said in told.out + told.err


@pytest.mark.parametrize(
    "value", ["hf_" + "aB3xK9mQ2vR7tY5wZ8nL", "0123456789abcdef" * 2, "http://me:" + "hunter2@proxy:1"]
)
def test_a_value_that_looks_like_a_key_is_refused_in_a_cluster_and_never_shown(desk, capsys, value):
    (desk / "conf/cluster").mkdir(parents=True)
    (desk / "conf/cluster/ours.yaml").write_text(
        f"_target_: launcher.request.cluster.Slurm\ngpus_per_node: 0\nenvironment: {{HARMLESS: '{value}'}}\n"
    )
    for words in (["cluster=ours"], ["cluster=cpu_slurm", f"cluster.environment.HARMLESS={value}"]):
        assert main(dry(*words)) == 2
        said = capsys.readouterr()
        assert "looks like" in said.err and "cluster.secrets" in said.err and value not in said.out + said.err


def test_a_value_with_the_shape_of_a_key_is_refused_in_a_recipe_and_a_reference_to_one_is_not(
    desk, capsys, monkeypatch
):
    monkeypatch.setenv("MY_PROXY", "canary-77aa")
    (desk / "r.yaml").write_text("_target_: nemo_vfm.workflow.Workflow\nsteps: {a: 'recipe:synthetic/shapes'}\n")
    key = "hf_" + "aB3xK9mQ2vR7tY5wZ8nL"
    assert main(["submit", "r.yaml", "cluster=dgx_h100", f"input={key}", "--dry-run"]) == 2
    said = capsys.readouterr()
    assert "would contain a Hugging Face token" in said.err and key not in said.out + said.err
    assert "https://me:${env:MY_PROXY}@host" in composed_text(
        compose("r.yaml", ["input=https://me:${env:MY_PROXY}@host"])
    )


def test_what_the_recipe_reads_and_is_not_there_keeps_it_from_being_submitted(
    tmp_path, monkeypatch, capsys, asked_here
):
    monkeypatch.chdir(tmp_path)
    words = ["submit", "curation/clips", "cluster=cpu_slurm", "source.path=gone", "--dry-run"]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "PROBLEM check" in said and "there is no gone on this machine" in said and "source.path=gone" in said
    assert main([*words, "--no-paths"]) == 0
    assert "there is no gone" not in capsys.readouterr().out


def test_in_a_container_paths_are_looked_for_where_they_are_mounted_from(tmp_path, monkeypatch, capsys, asked_here):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "films").mkdir()
    (tmp_path / "films/one.mp4").touch()
    words = ["submit", "curation/clips", "cluster=cpu_slurm", "cluster.cpus_per_node=2", "--dry-run"]
    words += [
        f"cluster.container={{_target_: launcher.request.cluster.Pyxis, image: x, mounts: {{{tmp_path}/films: /data}}}}"
    ]
    for path in ("/data", "/data/gone", "/opt/data"):
        assert main([*words, f"source.path={path}"]) == 0
        said = capsys.readouterr().out
        assert ("PROBLEM check" in said) == (path == "/data/gone"), said
        assert (f"not looked at: {path}" in said) == (path == "/opt/data")


def test_a_sampling_on_two_devices_gets_two_tasks(desk, capsys):
    words = ["diffusion/sample", "checkpoint=null", "parallel.guidance=2", "cluster=dgx_h100"]
    assert main(["submit", *words, "--dry-run", "--print-script"]) == 0
    assert "\n#SBATCH --ntasks-per-node=2\n" in capsys.readouterr().out
