"""Tests what Makefile, .ci/run and Dockerfile would do; nothing is installed."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import preloaded
from tests.support.repository import ROOT

STEPS = [".torchtorch--2.13.0", "constraints.txt", ".runtime", ".dev"]
TOOLS = ("bash", "sh", "make", "awk", "grep", "cat", "rm", "touch", "dirname", "env")


def make(*words: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **({"PATH": path} if path else {})}
    env = {name: value for name, value in env.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "TORCH", "VENV")}
    return subprocess.run(["make", *words], cwd=ROOT, env=env, capture_output=True, text=True, timeout=60)


@pytest.fixture
def fresh(tmp_path):
    """A folder that looks as if the set-up had just been done there."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    for seconds, name in enumerate(STEPS):
        (tmp_path / name).touch()
        after_all_sources = max((ROOT / f).stat().st_mtime for f in ("constraints.txt", "setup.py", "Makefile")) + 1
        os.utime(tmp_path / name, (after_all_sources + seconds,) * 2)
    return tmp_path


def test_the_torch_of_the_stamp_is_the_torch_of_the_constraints():
    assert "torch==2.13.0" in (ROOT / "constraints.txt").read_text().splitlines(), "change STEPS above with it"


def test_torch_stands_first_among_the_pins_and_all_are_exact_and_without_build_labels():
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
    assert lines[0].startswith("torch==")
    loose = [line for line in lines if not re.fullmatch(r"[\w.-]+==[\w.!]+", line)]
    assert not loose, f"name==version, without +cpu and the like: {loose}"


def test_the_set_up_is_not_done_again_when_nothing_changed(fresh):
    done = make("-n", "test", f"VENV={fresh}")
    assert done.returncode == 0 and "pip" not in done.stdout and "pytest" in done.stdout


def test_the_set_up_is_done_again_when_the_constraints_changed(fresh):
    os.utime(fresh / "constraints.txt", (0, 0))
    assert "pip" in make("-n", "test", f"VENV={fresh}").stdout


def test_another_torch_is_installed_when_asked_for(fresh):
    assert "torch==2.12.1" in make("-n", "demo", f"VENV={fresh}", "TORCH=torch==2.12.1").stdout


def test_the_demo_installs_no_tool_of_the_tests(tmp_path):
    script = make("-n", "demo", f"VENV={tmp_path / 'none'}").stdout
    assert "[dev]" not in script and "nemo-vfm run recipes/quickstart.yaml" in script


def test_torch_is_installed_before_anything_else(tmp_path):
    installs = re.findall(r"pip .*install .*", make("-n", "test", f"VENV={tmp_path / 'none'}").stdout)
    assert "--upgrade pip" in installs[0] and "torch==" in installs[1] and all("-c " in line for line in installs[2:])


def test_the_users_own_videos_and_run_folder_are_passed_on(fresh):
    script = make("-n", "demo", f"VENV={fresh}", "INPUT=my videos", "RUN_DIR=out").stdout
    assert '"input=my videos"' in script and '"run_dir=out"' in script


def test_the_long_tests_and_other_cases_each_time_are_left_to_soak(fresh):
    names = ("test", "test-slow", "test-all", "soak")
    usual, slow, both, long = (make("-n", name, f"VENV={fresh}").stdout for name in names)
    assert "-m 'not slow and not cluster and not soak'" in usual and "-m '(slow or cluster) and not soak'" in slow
    assert "-m 'not soak'" in both and "-m 'soak or hypothesis' --hypothesis-profile=soak" in long
    assert "profile" not in usual


@pytest.mark.parametrize("names", [["CI", "GITLAB_CI"], []], ids=["there", "elsewhere"])
def test_which_cases_are_drawn_is_the_same_question_on_a_machine_of_continuous_integration(names):
    """hypothesis takes other settings as its own where a variable such as CI stands."""
    said = (
        "from tests.conftest import settings; ours, soak = map(settings.get_profile, ('ours', 'soak'))\n"
        "print(ours.derandomize, soak.derandomize, soak.database is not None, settings.default == ours)\n"
        "print(ours.deadline, soak.deadline, len(ours.suppress_health_check), len(soak.suppress_health_check))"
    )
    plain = {name: value for name, value in os.environ.items() if name not in ("CI", "GITLAB_CI")}
    done = preloaded.run([sys.executable, "-c", said], env=plain | dict.fromkeys(names, "true"))
    assert done.stdout == "True False True True\nNone None 1 1\n", done.stderr


@pytest.mark.slow  # it waits for a hang
def test_a_test_that_hangs_is_named_and_ends_the_run(fresh, tmp_path):
    pytest_here = fresh / "bin" / "pytest"
    pytest_here.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m pytest "$@"\n')
    pytest_here.chmod(0o755)
    tried = tmp_path / "test_tried.py"
    tried.write_text("import time\ndef test_before(): pass\ndef test_hangs(): time.sleep(100)\n")
    words = f"{tried} -c pyproject.toml --rootdir . -p no:cacheprovider --color=no -o faulthandler_timeout=1"
    done = make("test", f"VENV={fresh}", "JOBS=1", f"PYTEST_ARGS={words}")
    assert done.returncode != 0 and "Timeout (0:00:01)!" in done.stderr and "in test_hangs" in done.stderr
    assert re.search(r"worker 'gw0' crashed while running .*test_hangs", done.stdout)
    assert "1 failed, 1 passed" in done.stdout


def test_a_machine_without_a_fitting_python_is_told_what_to_install(tmp_path):
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in TOOLS:
        (tools / tool).symlink_to(shutil.which(tool))
    (tools / "python3.11").write_text("#!/bin/sh\necho 'not in these versions' >&2\nexit 127\n")
    (tools / "python3.11").chmod(0o755)
    done = make("demo", f"VENV={tmp_path / 'none'}", path=str(tools))
    assert done.returncode != 0
    assert "No Python 3.11 or 3.12" in done.stdout and "apt-get install" in done.stdout


def checkout(folder: Path) -> Path:
    """A checkout with nothing but .ci/run, a make that tells what it was called with, and an apt-get that does too."""
    (folder / "checkout" / ".ci").mkdir(parents=True)
    shutil.copy(ROOT / ".ci" / "run", folder / "checkout" / ".ci" / "run")
    (folder / "bin").mkdir()
    (folder / "bin" / "make").write_text(
        '#!/bin/sh\necho "make $1 with ${NEMO_VFM_TEST_DATA:-nothing}"\nexit ${CODE:-0}\n'
    )
    (folder / "bin" / "make").chmod(0o755)
    apt = f'#!/bin/sh\necho "$*" >> {folder}/apt\nexit ${{APT:-0}}\n'
    for tool, text in {"apt-get": apt, "id": "#!/bin/sh\necho ${WHO:-0}\n"}.items():
        (folder / "bin" / tool).write_text(text)
        (folder / "bin" / tool).chmod(0o755)
    return folder / "checkout" / ".ci" / "run"


def run_ci(script: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run .ci/run from elsewhere with the make that only tells."""
    env = {name: value for name, value in os.environ.items() if name != "NEMO_VFM_TEST_DATA"}
    env = {**env, "PATH": f"{script.parents[2] / 'bin'}:{env['PATH']}", **environment}
    return subprocess.run(["bash", script], cwd="/", env=env, capture_output=True, text=True, timeout=60)


def test_ci_takes_real_videos_where_they_lie_beside_the_checkout(tmp_path):
    script = checkout(tmp_path)
    (tmp_path / "shared" / "data").mkdir(parents=True)
    assert f"make test-all with {tmp_path / 'shared' / 'data'}" in run_ci(script).stdout


def test_ci_runs_without_real_videos_too_and_says_so(tmp_path):
    done = run_ci(checkout(tmp_path))
    assert "make test-all with nothing" in done.stdout and "skip" in done.stdout


def test_ci_runs_the_quick_tests_and_the_others(tmp_path):
    said = run_ci(checkout(tmp_path)).stdout
    assert re.findall(r"^make (\S+) with", said, re.M) == ["torch", "setup-dev", "test-all"]


def test_ci_fails_when_the_tests_fail(tmp_path):
    assert run_ci(checkout(tmp_path), CODE="2").returncode == 2


def run_bare_ci(script: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run it where there is no Slurm: of a usual machine it sees the most needful tools alone."""
    tools = script.parents[2] / "tools"
    tools.mkdir()
    for tool in ("bash", "dirname", "timeout", "sh", "mktemp", "rm"):
        (tools / tool).symlink_to(shutil.which(tool))
    return run_ci(script, **{"PATH": f"{script.parents[2] / 'bin'}:{tools}", **environment})


def test_ci_installs_slurm_where_it_is_absent_and_may(tmp_path):
    done = run_bare_ci(checkout(tmp_path))
    update, install = (tmp_path / "apt").read_text().splitlines()
    assert update.endswith("update") and install.endswith("install --no-install-recommends slurm-wlm munge shellcheck")
    assert (
        done.returncode == 0
        and "make test-all" in done.stdout
        and "skip themselves" not in done.stdout.split("\n", 1)[1]
    )


def test_ci_goes_on_where_slurm_cannot_be_installed(tmp_path):
    done = run_bare_ci(checkout(tmp_path), APT="100")
    assert done.returncode == 0 and "make test-all" in done.stdout
    assert "slurm-wlm munge shellcheck could not be installed: tests that need them skip themselves" in done.stdout


def test_ci_of_somebody_who_is_not_root_installs_nothing(tmp_path):
    done = run_bare_ci(checkout(tmp_path), WHO="1000")
    assert done.returncode == 0 and "make test-all" in done.stdout and not (tmp_path / "apt").exists()
    assert "Without slurm-wlm munge shellcheck" in done.stdout


def instructions() -> list[tuple[str, str]]:
    """(word, rest) of each instruction of the Dockerfile, continued lines joined, comments left out."""
    lines = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [(word.upper(), rest) for word, _, rest in (line.partition(" ") for line in joined.splitlines()) if word]


def test_the_dockerfile_pins_its_base_and_adds_nothing_from_afar():
    arguments = dict(rest.partition("=")[::2] for word, rest in instructions() if word == "ARG")
    bases = [rest.split()[0] for word, rest in instructions() if word == "FROM"]
    assert bases
    for base in bases:
        image = re.sub(r"\$\{?(\w+)\}?", lambda name: arguments[name[1]], base)
        assert re.search(r":[\w.-]*\d", image) and ":latest" not in image, f"{image} is not pinned"
    assert not [rest for word, rest in instructions() if word == "ADD"]
    assert not [rest for word, rest in instructions() if word == "RUN" and re.search(r"\b(curl|wget)\b", rest)]


def test_the_dockerfile_leaves_no_package_lists_and_does_not_end_as_root():
    for word, rest in instructions():
        if word == "RUN" and "apt-get install" in rest:
            assert "--no-install-recommends" in rest and "rm -rf /var/lib/apt/lists/*" in rest
    assert [rest for word, rest in instructions() if word == "USER"][-1] not in ("root", "0")


def test_nothing_is_offered_that_nothing_uses():
    offered = "".join((ROOT / name).read_text(encoding="utf-8") for name in ("setup.py", "Dockerfile"))
    users = [path for path in (ROOT / "nemo_vfm").rglob("*.py") if "import megatron.core" in path.read_text()]
    assert users or not re.search(r"megatron.core|transformer.engine", offered, re.IGNORECASE)


def test_hadolint_finds_nothing_in_the_dockerfile():
    hadolint = Path(sys.executable).with_name("hadolint")
    if not hadolint.exists():
        pytest.skip("hadolint is not installed (it comes with the extra dev on x86-64 Linux)")
    done = subprocess.run([hadolint, ROOT / "Dockerfile"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
