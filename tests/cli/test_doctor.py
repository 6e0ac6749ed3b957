"""Tests what `doctor` finds on working and broken machines."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from packaging.requirements import Requirement

from nemo_vfm.cli.doctor import examine_machine
from nemo_vfm.cli.doctor.examine_machine import PROBES, CheckResult, examine, paste_ready
from nemo_vfm.cli.doctor.probe_child import PROBES as FUNCTIONS
from nemo_vfm.cli.doctor.probe_child import ProbeResult, ask
from nemo_vfm.cli.main import main
from nemo_vfm.core.optional import available
from tests.support.processes import all_end


def fine(name: str) -> ProbeResult:
    """A machine on which everything works."""
    return ProbeResult("ok", f"{name} works")


def by_name(findings: list[CheckResult]) -> dict[str, CheckResult]:
    return {finding.name: finding for finding in findings}


@pytest.fixture
def fakes(tmp_path, monkeypatch):
    """A folder of packages that the probes' processes find first."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(name: str, text: str) -> None:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    return write


def told(monkeypatch: pytest.MonkeyPatch, *findings: CheckResult) -> None:
    """Let the verb find this."""
    monkeypatch.setattr("nemo_vfm.cli.doctor.examine_machine.examine", lambda folder: list(findings))


def test_every_probe_has_its_function():
    assert {probe.probe for probe in PROBES} == set(FUNCTIONS)
    assert all(probe.behind in ("", *(earlier.probe for earlier in PROBES[:i])) for i, probe in enumerate(PROBES))


@pytest.mark.parametrize("probe", ["h264", "pyav", "decord"])
def test_a_clip_is_really_written_and_read_here(probe):
    if probe == "decord" and not available("decord"):
        pytest.skip("decord has no build for this processor")
    answer = ask(probe)
    assert answer.state == "ok", answer
    assert "H.264" in answer.detail


@pytest.mark.slow
def test_torch_really_multiplies_here():
    answer = ask("torch")
    assert answer.state == "ok" and " thread" in answer.detail


def test_a_package_that_ends_the_process_is_a_finding(fakes):
    fakes("ray/__init__.py", "import os, signal\nprint('noise', flush=True)\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    assert ask("ray") == ProbeResult("broken", "was killed by SIGSEGV")
    fakes(
        "ray/__init__.py", "import os, sys\nsys.stderr.write('libfoo is too old\\n')\nsys.stderr.flush()\nos._exit(3)\n"
    )
    assert ask("ray") == ProbeResult("broken", "ended with status 3: libfoo is too old")


@pytest.mark.slow
def test_a_package_that_never_returns_is_ended_with_its_children(fakes, tmp_path):
    forks = "import subprocess, pathlib, time\nchild = subprocess.Popen(['sleep', '60'])\n"
    fakes(
        "ray/__init__.py",
        f"{forks}pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(child.pid))\ntime.sleep(60)\n",
    )
    began = time.monotonic()
    assert ask("ray", limit_s=3) == ProbeResult("broken", "did not answer within 3 s")
    assert time.monotonic() - began < 40, "its child held the pipe open until it had slept"
    assert all_end([int((tmp_path / "pid").read_text())])


@pytest.mark.parametrize(
    ("text", "state", "said"),
    [
        ("raise RuntimeError('a shared library is missing')", "broken", "RuntimeError: a shared library is missing"),
        ("raise ImportError('libcudart.so: cannot open')", "broken", "libcudart.so"),
        ("import nowhere_to_be_found", "missing", "nowhere_to_be_found"),
        ("raise SystemExit(0)", "broken", "SystemExit"),
        ("print('nemo_vfm doctor answers: {}')", "ok", "imports"),
    ],
)
def test_how_an_import_fails_is_told(fakes, text, state, said):
    fakes("ray.py", text + "\n")
    answer = ask("ray")
    assert answer.state == state and said in answer.detail


def test_frames_that_come_back_wrong_are_broken(fakes):
    fakes("decord.py", "__version__ = '9'\nimport numpy as np\nclass VideoReader:\n"
                       "    def __init__(self, *a, **k): pass\n"
                       "    def get_batch(self, i): return self\n"
                       "    def asnumpy(self): return np.zeros((2, 8, 8, 3), np.uint8)\n")  # fmt: skip
    answer = ask("decord")
    assert answer.state == "broken" and "came back as [0, 0]" in answer.detail


def test_all_is_well_where_all_works(tmp_path):
    found = examine(tmp_path, fine)
    assert len(found) > 15 and not [finding for finding in found if finding.stops]
    assert [f.group for f in found] == sorted((f.group for f in found), key=[f.group for f in found].index)


def test_one_broken_check_does_not_end_the_others(tmp_path, monkeypatch):
    def explode() -> CheckResult:
        raise OSError("no such device")

    monkeypatch.setattr(examine_machine, "memory", explode)
    found = examine(tmp_path, lambda name: ProbeResult("broken", "was killed") if name == "h264" else fine(name))
    assert by_name(found)["H.264 encoder"].stops and by_name(found)["PyAV decoder"].state == "ok"
    assert [f.detail for f in found if "no such device" in f.detail] == [
        "could not be checked: OSError: no such device"
    ]
    assert "open files" in by_name(found)


def test_what_needs_a_gpu_is_not_tried_without_one(tmp_path):
    asked = []

    def no_gpu(name: str) -> ProbeResult:
        asked.append(name)
        return ProbeResult("missing", "no GPU found") if name == "gpu" else fine(name)

    found = by_name(examine(tmp_path, no_gpu))
    assert found["NCCL"].state == "missing" and not found["GPU"].stops
    assert "nccl" not in asked and found["NCCL"].hint


def test_a_folder_that_cannot_be_written_stops(tmp_path):
    missing, unwritable = tmp_path / "a/b/c", Path("/proc/runs")
    assert next(f.state for f in examine_machine.run_folder(missing)) == "ok" and not missing.exists()
    (finding,) = examine_machine.run_folder(unwritable)
    assert finding.stops and "cannot be written" in finding.detail


def test_versions_are_compared_with_what_we_declare(monkeypatch):
    assert examine_machine.why_not(Requirement("numpy>=1,<99")) == ""
    assert "expected <1" in examine_machine.why_not(Requirement("numpy<1"))
    assert examine_machine.why_not(Requirement("not-there-at-all>=1")) == "not-there-at-all is not installed"
    monkeypatch.setattr(examine_machine.metadata, "requires", lambda name: ["numpy<1", "nowhere", "x; extra == 'dev'"])
    assert [(f.name, f.state, f.stops) for f in examine_machine.packages()] == [
        ("numpy", "broken", True), ("nowhere", "missing", True)]  # fmt: skip


def test_a_low_limit_is_told_with_what_to_do(monkeypatch):
    monkeypatch.setattr(examine_machine.resource, "getrlimit", lambda _: (256, 4096))
    finding = examine_machine.open_files()
    assert (finding.state, finding.detail) == ("low", "256 of 4,096") and "ulimit" in finding.hint and not finding.stops
    monkeypatch.setattr(examine_machine.resource, "getrlimit", lambda _: (-1, -1))
    assert examine_machine.open_files().state == "ok"


def test_a_containers_limit_counts_for_memory(monkeypatch, tmp_path):
    monkeypatch.setattr(examine_machine, "_CGROUPS", tmp_path)
    monkeypatch.setattr(examine_machine, "_OWN_CGROUPS", tmp_path / "own")
    assert "cgroup" not in examine_machine.memory().detail
    write_limit(tmp_path, "max", "0")
    assert "cgroup" not in examine_machine.memory().detail
    write_limit(tmp_path, "2000000000", "500000000")
    assert examine_machine.memory().state == "low"
    assert examine_machine.memory().detail.startswith(
        "2.0 GB, 1.5 GB free; a container or a job (cgroup) may use no more"
    )


@pytest.mark.parametrize("version", [1, 2])
def test_the_smallest_limit_of_a_jobs_groups_counts_whatever_version_they_are_of(monkeypatch, tmp_path, version):
    (tmp_path / "own").write_text("3:cpu:/x\n4:memory:/slurm/job_7/step_0\n" if version == 1 else
                                  "0::/slurm/job_7/step_0\n")  # fmt: skip
    monkeypatch.setattr(examine_machine, "_CGROUPS", tmp_path)
    monkeypatch.setattr(examine_machine, "_OWN_CGROUPS", tmp_path / "own")
    root = tmp_path / ("memory" if version == 1 else "")
    write_limit(root / "slurm/job_7/step_0", str(2**63 - 4096) if version == 1 else "max", "0", version)
    write_limit(root / "slurm/job_7", "1000000000", "0", version)
    write_limit(root, "9000000000", "0", version)
    assert examine_machine.memory().detail.startswith("1.0 GB, 1.0 GB free; a container")


def write_limit(group: Path, limit: str, used: str, version: int = 2) -> None:
    names = ("memory.max", "memory.current") if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    group.mkdir(parents=True, exist_ok=True)
    for name, text in zip(names, (limit, used), strict=True):
        (group / name).write_text(f"{text}\n")


def test_slurm_is_found_on_the_path(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert {f.state for f in examine_machine.programs()} == {"missing"}
    for name in ("sbatch", "srun"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    assert {f.state for f in examine_machine.programs()} == {"ok"}


def test_what_is_shown_can_be_pasted(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("HOME", "/people/ann")
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef0123")
    others = "/".join(["", "home", "bob", "y"])  # joined, since no file of ours holds such a path
    text = f"/people/ann/x and /people/anna, {others}, key 0123456789abcdef0123\nnext"
    assert paste_ready(text) == "~/x and /people/anna, ~/y, key *** next"
    told(monkeypatch, CheckResult("needed", "torch", "broken", text, hint=text, needed=True))
    for words in (["doctor"], ["doctor", "--json"]):
        assert main(words) == 2
        shown = capsys.readouterr().out
        assert "0123456789abcdef" not in shown and "bob" not in shown and "/people/ann/" not in shown


def test_the_table_says_states_in_words_and_keeps_to_the_terminal(monkeypatch, capsys):
    long = "a sentence that goes on and on " * 8
    told(
        monkeypatch,
        CheckResult("needed", "torch", "ok", "2.13", needed=True),
        CheckResult("GPU", "FP8", "missing", long, "buy"),
    )
    for columns in (60, 80, 200):
        monkeypatch.setenv("COLUMNS", str(columns))
        assert main(["doctor"]) == 0
        shown = capsys.readouterr().out
        assert max(map(len, shown.splitlines())) <= columns and "\x1b" not in shown
        assert not [line for line in shown.splitlines() if line != line.rstrip()]
        assert "  ok       torch  2.13\n" in shown and "  missing  FP8    a sentence" in shown
        assert "what to do\n  FP8: buy\n" in shown and shown.endswith("Everything required works.\n")


def test_the_status_says_whether_something_needed_is_broken(monkeypatch, capsys):
    told(
        monkeypatch,
        CheckResult("video", "decord decoder", "broken", "x"),
        CheckResult("machine", "disk", "low", "1 GB"),
    )
    assert main(["doctor"]) == 0
    told(monkeypatch, CheckResult("needed", "PyAV decoder", "missing", "x", needed=True))
    assert main(["doctor"]) == 2
    assert "Required, and not working: PyAV decoder." in capsys.readouterr().out
    assert main(["doctor", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["ok"] is False


def test_colours_are_for_terminals_and_for_those_who_want_them(monkeypatch):
    code = ("import pty, sys, os\n"
            "from nemo_vfm.runtime.terminal import Terminal\n"
            "Terminal().table([('head',), ('ok', 'x', 'y')], {'ok': 'green'})\n"
            "Terminal().line('z', 'bold')\n")  # fmt: skip

    def shown(**environment: str) -> str:
        """What a terminal gets."""
        leader, follower = os.openpty()
        env = {**os.environ, "TERM": "xterm", "COLUMNS": "80", **environment}
        subprocess.run([sys.executable, "-c", code], stdout=follower, env=env, check=True, timeout=60)
        os.close(follower)
        text = os.read(leader, 1 << 16).decode()
        os.close(leader)
        return text

    assert "\x1b[" in shown(NO_COLOR="")
    assert "\x1b[" not in shown(NO_COLOR="1") and "\x1b[" not in shown(TERM="dumb")


def test_nemo_is_never_to_be_installed_beside_us(tmp_path, monkeypatch):
    monkeypatch.setattr(
        examine_machine, "extras", lambda: [("nemo", "nemo-toolkit is not installed"), ("wandb", "absent")]
    )
    hints = {found.name: found.hint for found in examine(tmp_path, lambda _: ProbeResult("ok", "asked nothing"))}
    assert "separate environment" in hints["nemo"] and "pip" not in hints["nemo"]
    assert hints["wandb"].startswith("pip install ") and hints["wandb"].endswith(" 'nemo_vfm[wandb]'")


def test_free_space_is_of_the_disk_that_runs_would_go_to(tmp_path, monkeypatch):
    """The folder need not be there; the nearest above it says which disk it is."""
    (tmp_path / "small").mkdir()
    free = {tmp_path / "small": 1e9, tmp_path: 500e9}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(examine_machine.shutil, "disk_usage", lambda place: SimpleNamespace(free=free[Path(place)]))
    for folder, state, said in ((tmp_path / "small/a/b", "low", "1.0 GB"), (tmp_path / "a", "ok", "500.0 GB")):
        _, disk = examine_machine.run_folder(folder)
        assert (disk.state, disk.detail, bool(disk.hint)) == (state, f"{said} free for {folder}", state == "low")
