"""Tests that the output of a local run is shown as it comes, logged, and can be followed."""

import io
import os
import pty
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from launcher.cli import main
from launcher.state import logs
from tests.launcher.conftest import LAUNCHER
from tests.support import preloaded
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


class Launcher(preloaded.Started):
    """The launcher in a process of its own; what it says goes into files."""

    def __init__(self, *words: str) -> None:
        self.out, self.err = (Path(f"{words[0]}-{time.monotonic_ns()}.{name}") for name in ("out", "err"))
        super().__init__([sys.executable, "-c", LAUNCHER, *words], out=self.out, err=self.err, cwd=Path.cwd())

    def until(self, word: str) -> None:
        """Wait until it has said a word."""
        end = time.monotonic() + 60
        while word not in self.out.read_text():
            assert self.poll() is None and time.monotonic() < end, self.err.read_text()
            time.sleep(0.02)


@contextmanager
def begun(*words: str) -> Iterator[Launcher]:
    process = Launcher(*words)
    try:
        yield process
    finally:
        process.kill()


SUBMIT = ("submit", "talks.yaml", "cluster=local", "--trust", "talking")


@pytest.mark.slow  # launched runs
def test_what_it_says_is_shown_as_it_comes_followed_by_others_and_kept_for_each_launch(desk, capsys):
    with begun(*SUBMIT) as launcher:
        launcher.until("one \u00e9")
        with begun("logs", "-f", "runs/talks") as follower:
            follower.until("one \u00e9")
            (desk / "go").touch()
            assert launcher.wait(60) == follower.wait(60) == 0
    out, err, followed = launcher.out.read_text(), launcher.err.read_text(), follower.out.read_text()
    assert "three" in out and "two" in err and "two" not in out
    assert "two" in followed and "three" in followed
    assert main(["logs", "runs/talks"]) == 0
    kept = capsys.readouterr().out
    assert kept.index("one \u00e9") < kept.index("three") < kept.index("==> local-1.err <==") < kept.index("two")

    with begun(*SUBMIT) as launcher:  # finds the run done
        assert launcher.wait(60) == 0
    names = sorted(file.name for file in (desk / "runs/talks/launch/logs").iterdir())
    assert names == ["local-1.err", "local-1.out", "local-2.err", "local-2.out"]
    assert main(["logs", "runs/talks"]) == 0
    said = capsys.readouterr().out
    assert "already finished" in said and "three" not in said


@pytest.mark.slow  # a launched run
def test_a_run_whose_launcher_was_killed_goes_on_and_is_followed_to_its_end(desk):
    with begun(*SUBMIT) as launcher:
        launcher.until("one \u00e9")
        launcher.kill()
        launcher.wait(60)
    with begun("logs", "-f", "runs/talks") as follower:
        follower.until("one \u00e9")
        assert follower.poll() is None
        (desk / "go").touch()
        assert follower.wait(60) == 0
    assert "three" in follower.out.read_text()


@pytest.mark.slow  # launched runs
def test_a_terminal_is_left_to_the_run_and_no_log_is_kept(desk, capsys):
    (desk / "go").touch()
    mine, theirs = pty.openpty()
    errors = os.dup(theirs)
    try:
        command = [sys.executable, "-c", LAUNCHER, *SUBMIT]
        assert preloaded.Child(command, stdout=theirs, stderr=errors).wait(60) == 0
        seen = os.read(mine, 1 << 16).decode()
    finally:
        for one in (mine, theirs, errors):
            os.close(one)
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
    assert logs.latest_logs(tmp_path)[0].read_bytes() == b"heard by nobody"


def test_a_log_is_its_owners_and_is_over_when_nobody_writes_it(tmp_path):
    (tmp_path / "logs").mkdir()
    assert logs.is_over(tmp_path) and logs.latest_logs(tmp_path) == []
    with logs.LocalLog(tmp_path):
        assert not logs.is_over(tmp_path)
    assert logs.is_over(tmp_path)
    assert {file.stat().st_mode & 0o777 for file in logs.latest_logs(tmp_path)} == {0o600}
