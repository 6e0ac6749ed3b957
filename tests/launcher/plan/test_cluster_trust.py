"""Tests what a stranger's cluster file may say without a word of trust."""

from pathlib import Path

import pytest

from launcher.cli import main
from nemo_vfm.cli.main import main as nemo_vfm
from tests.support.repository import ROOT

LOCAL = "_target_: launcher.request.cluster.Local\n"
SLURM = "_target_: launcher.request.cluster.Slurm\ngpus_per_node: 0\ncpus_per_node: 4\n"


@pytest.fixture
def desk(desk: Path) -> Path:
    """A working directory with a folder of ingredients."""
    (desk / "conf/cluster").mkdir(parents=True)
    return desk


def dry(name: str, *words: str) -> int:
    return main(["submit", "synthetic/shapes", f"cluster={name}", *words, "--dry-run", "--print-script"])


@pytest.mark.parametrize("line", [
    *(f"environment: {{{name}: x}}" for name in (
        "PYTHONPATH", "PYTHONSTARTUP", "PYTHONHOME", "PYTHONUSERBASE", "PYTHONINSPECT", "LD_PRELOAD", "LD_LIBRARY_PATH",
        "LD_AUDIT", "PATH", "NCCL_NET_PLUGIN", "NCCL_TUNER_PLUGIN", "NCCL_PROFILER_PLUGIN", "NCCL_CONF_FILE", "HOME",
        "NCCL_CUDA_PATH", "UCX_MODULE_DIR", "UCX_MODULES", "UCX_GDB_COMMAND", "OMPI_MCA_x", "OMP_TOOL_LIBRARIES",
        "CUDA_INJECTION64_PATH", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "MPLBACKEND", "GIT_SSH_COMMAND",
        "HF_HOME", "HTTPS_PROXY", "TMPDIR", "GCONV_PATH", "KINETO_CONFIG", "FI_PROVIDER_PATH", "RDMAV_DRIVERS",
        "EDITOR",
    )),
    "environment: {NCCL_DEBUG: /tmp/x}", "environment: {OMP_NUM_THREADS: '$(id)'}", "environment: {PATH: null}",
    "secrets: {LD_PRELOAD: /tmp/x}", "secrets: {GIT_KEY_COMMAND: /tmp/x}",
])  # fmt: skip
def test_a_variable_that_may_load_code_needs_a_word_of_trust_in_a_local_file(desk, capsys, line):
    (desk / "conf/cluster/local.yaml").write_text(f"{LOCAL}{line}\n")
    assert dry("local") == 2
    assert "add --trust cluster" in capsys.readouterr().err


@pytest.mark.parametrize("line", [
    "container: {_target_: launcher.request.cluster.Apptainer, image: /x.sif, program: ./x}", "source: ./activate",
    "container: {_target_: launcher.request.cluster.Pyxis, image: x}", "modules: [/tmp/module]", "modules: [./m]",
    "options: {prolog: ./x}", "step_options: {task-prolog: ./x}", "step_options: {bcast: null}", "mpi: ./x.so",
    "options: {mail-user: ../x}", "options: {get-user-env: null}",
])  # fmt: skip
def test_a_program_needs_a_word_of_trust_in_a_local_file(desk, capsys, line):
    (desk / "conf/cluster/mine.yaml").write_text(f"{SLURM}{line}\n")
    assert dry("mine") == 2
    assert "add --trust cluster" in capsys.readouterr().err


def test_all_objections_come_at_once_with_their_places(desk, capsys):
    (desk / "conf/cluster/mine.yaml").write_text(f"{SLURM}environment: {{LD_PRELOAD: a, PATH: b}}\nsource: /x\n")
    assert dry("mine") == 2
    said = capsys.readouterr().err
    assert said.count("add --trust cluster") == 3 and "conf/cluster/mine.yaml:4:" in said


def test_a_slip_of_the_pen_is_named_and_no_trust_is_asked_for(desk, capsys):
    (desk / "conf/cluster/mine.yaml").write_text(f"{SLURM}accont: vision\nsource: /x\n")
    assert dry("mine") == 2
    said = capsys.readouterr().err
    assert "did you mean account?" in said and "conf/cluster/mine.yaml:4:" in said and "trust" not in said


def test_sizes_and_settings_of_networks_need_none(desk, capsys):
    (desk / "conf/cluster/mine.yaml").write_text(
        f"{SLURM}account: vision\npartition: batch\ntime: '1:00:00'\nmodules: [cuda/12.8]\nexclude: [n1]\nmpi: pmix\n"
        "environment: {NCCL_IB_HCA: 'mlx5_0,mlx5_1', NCCL_P2P_DIRECT_DISABLE: '1', OMP_NUM_THREADS: '8',"
        " FI_PROVIDER: efa, UCX_NET_DEVICES: 'mlx5_0:1', PYTORCH_ALLOC_CONF: 'expandable_segments:True',"
        " NCCL_NVLS_ENABLE: null}\n"
        "secrets: {WANDB_API_KEY: /lustre/you/.key}\noptions: {nice: '5', licenses: 'a:1'}\n"
    )
    assert dry("mine") == 0
    assert "export NCCL_IB_HCA=" in capsys.readouterr().out


def test_what_the_command_line_says_needs_none(desk, capsys):
    assert dry("cpu_slurm", "cluster.cpus_per_node=4", "cluster.environment={LD_PRELOAD: /opt/x.so}") == 0
    assert "export LD_PRELOAD=/opt/x.so" in capsys.readouterr().out


def test_a_file_in_the_place_of_ours_is_said_and_with_trust_so_is_what_runs_of_it(desk, capsys):
    (desk / "conf/cluster/local.yaml").write_text(f"{LOCAL}environment: {{LD_PRELOAD: /opt/x.so, NCCL_DEBUG: null}}\n")
    assert dry("local", "--trust", "cluster", "cluster.secrets={WANDB_API_KEY: /k}") == 0
    said = capsys.readouterr()
    assert "conf/cluster/local.yaml, the working directory's, instead of the built-in file" in said.err
    assert "environment.LD_PRELOAD" in said.err and "because of --trust cluster" in said.err
    for line in ("export LD_PRELOAD=/opt/x.so", "unset NCCL_DEBUG", "IFS= read -r WANDB_API_KEY < /k", f"cd {desk}"):
        assert line in said.out


def test_a_cluster_file_of_ours_is_called_built_in_by_its_name_in_the_documentation(desk, capsys):
    assert dry("dgx_h100") == 0
    assert " conf/cluster/dgx_h100.yaml, built in\n" in capsys.readouterr().err


def test_an_ingredient_or_a_recipe_in_the_place_of_ours_is_said_by_check_and_show_and_submit(desk, capfd):
    (desk / "conf/sampler").mkdir()
    (desk / "conf/sampler/euler.yaml").write_text("_target_: nemo_vfm.diffusion.sampler.Euler\nsteps: 3\n")
    (desk / "recipes/synthetic").mkdir(parents=True)
    ours = ROOT / "recipes/synthetic/shapes.yaml"
    (desk / "recipes/synthetic/shapes.yaml").write_text(f"{ours.read_text()}# mine\n")
    assert nemo_vfm(["show", "diffusion/sample"]) == 0
    assert "conf/sampler/euler.yaml replaces the built-in file" in " ".join(capfd.readouterr().err.split())
    assert nemo_vfm(["check", "synthetic/shapes"]) == 0
    assert "recipes/synthetic/shapes.yaml replaces the built-in file" in " ".join(capfd.readouterr().err.split())
    assert dry("dgx_h100") == 0
    assert "recipes/synthetic/shapes.yaml replaces the built-in file" in capfd.readouterr().err
