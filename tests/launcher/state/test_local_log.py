"""Tests that the output of a local run is shown as it comes, logged, and can be followed."""

import io
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from launcher.cli import main
from launcher.state import logs
from tests.support.repository import ROOT

TALKS = """\
import sys
import time
from pathlib import Path

from nemo_vfm.core.types.job import Outcome, Run


class Talks:
    def run(self, run: Run) -> Outcome:
        print("one \\u00e9")
        print("two", file=sys.stderr)
        while not Path("go").exists():
            time.sleep(0.05)
        print("three")
        return Outcome("talked")
"""


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a recipe that waits for a file `go`."""
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{ROOT}")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "talking.py").write_text(TALKS)
    (tmp_path / "talks.yaml").write_text("_target_: talking.Talks\n")
    return tmp_path


@contextmanager
def begun(*words: str) -> Iterator[subprocess.Popen[bytes]]:
    """The launcher in a process of its own."""
    command = [sys.executable, "-m", "launcher", *words]
    # Unbuffered: `communicate` reads past the buffer, so what a line's reading took ahead would be lost.
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0) as process:
        try:
            yield process
        finally:
            process.kill()


def until(process: subprocess.Popen[bytes], word: str) -> None:
    """Read what it says up to a line."""
    assert any(word in line.decode() for line in process.stdout), process.stderr.read().decode()


SUBMIT = ("submit", "talks.yaml", "cluster=local", "--trust", "talking")


@pytest.mark.slow  # launched runs
def test_what_it_says_is_shown_as_it_comes_followed_by_others_and_kept_for_each_launch(desk, capsys):
    with begun(*SUBMIT) as launcher:
        until(launcher, "one \u00e9")
        with begun("logs", "-f", "runs/talks") as follower:
            until(follower, "one \u00e9")
            (desk / "go").touch()
            out, err = launcher.communicate(timeout=60)
            followed, _ = follower.communicate(timeout=60)
    assert launcher.returncode == 0 and follower.returncode == 0
    assert b"three" in out and b"two" in err and b"two" not in out
    assert b"two" in followed and b"three" in followed
    assert main(["logs", "runs/talks"]) == 0
    kept = capsys.readouterr().out
    assert kept.index("one \u00e9") < kept.index("three") < kept.index("==> local-1.err <==") < kept.index("two")

    with begun(*SUBMIT) as launcher:  # finds the run done
        launcher.communicate(timeout=60)
    names = sorted(file.name for file in (desk / "runs/talks/launch/logs").iterdir())
    assert names == ["local-1.err", "local-1.out", "local-2.err", "local-2.out"]
    assert main(["logs", "runs/talks"]) == 0
    said = capsys.readouterr().out
    assert "already finished" in said and "three" not in said


@pytest.mark.slow  # a launched run
def test_a_run_whose_launcher_was_killed_goes_on_and_is_followed_to_its_end(desk):
    with begun(*SUBMIT) as launcher:
        until(launcher, "one \u00e9")
        launcher.send_signal(signal.SIGKILL)
        launcher.wait()
    with begun("logs", "-f", "runs/talks") as follower:
        until(follower, "one \u00e9")
        assert follower.poll() is None
        (desk / "go").touch()
        followed, _ = follower.communicate(timeout=60)
    assert b"three" in followed and follower.returncode == 0


@pytest.mark.slow  # launched runs
def test_a_terminal_is_left_to_the_run_and_no_log_is_kept(desk, capsys):
    (desk / "go").touch()
    mine, theirs = pty.openpty()
    try:
        command = [sys.executable, "-m", "launcher", *SUBMIT]
        assert subprocess.run(command, stdout=theirs, stderr=theirs, timeout=60, check=False).returncode == 0
        seen = os.read(mine, 1 << 16).decode()
    finally:
        os.close(mine)
        os.close(theirs)
    assert "one \u00e9" in seen and "three" in seen
    assert main(["logs", "-f", "runs/talks"]) == 0
    assert "ran in a terminal" in capsys.readouterr().out


def test_a_letter_that_comes_in_two_pieces_is_one(tmp_path, capsys):
    (tmp_path / "logs").mkdir()
    with logs.LocalLog(tmp_path) as log:
        os.write(log.out, b"\xc3")
        log.show()
        os.write(log.out, b"\xa9\r12")
        log.show()
    assert capsys.readouterr().out == "\u00e9\r12", "and bars of progress stay what they are"


class _Closed(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_nobody_listening_harms_no_run(tmp_path, monkeypatch):
    (tmp_path / "logs").mkdir()
    monkeypatch.setattr(sys, "stdout", _Closed())
    with logs.LocalLog(tmp_path) as log:
        os.write(log.out, b"heard by nobody")
        log.show()
    assert logs.latest(tmp_path)[0].read_bytes() == b"heard by nobody"


def test_a_log_is_its_owners_and_is_over_when_nobody_writes_it(tmp_path):
    (tmp_path / "logs").mkdir()
    assert logs.is_over(tmp_path) and logs.latest(tmp_path) == []
    with logs.LocalLog(tmp_path):
        assert not logs.is_over(tmp_path)
    assert logs.is_over(tmp_path)
    assert {file.stat().st_mode & 0o777 for file in logs.latest(tmp_path)} == {0o600}
