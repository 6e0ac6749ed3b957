"""Tests that one process holds a run folder's lock, and that the others are told why they do not."""

import errno
import json
import os
import shutil
import signal
import socket
import sys
import time
from dataclasses import asdict, replace

import pytest

from nemo_vfm.core import lease_registry
from nemo_vfm.core.errors import RunFolderError
from nemo_vfm.runtime import run_lock as module
from nemo_vfm.runtime.run_lock import Owner, _owner, holder, lock
from tests.support import preloaded
from tests.support.repository import ROOT


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    """Heartbeats of a twentieth of a second."""
    for name, seconds in {"BEAT_S": 0.05, "SILENCE_S": 0.75, "LOOK_S": 0.4}.items():
        monkeypatch.setattr(module, name, seconds)


def forked(work) -> int:
    """Run something in a copy of this process; its process number. The copy ends with 0, 2 where it was refused."""
    child = os.fork()
    if child:
        return child
    status = 99
    try:
        status = work() or 0
    except RunFolderError:
        status = 2
    finally:
        os._exit(status)


def ended(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def until(true, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def write(folder, **other) -> Owner:
    """A lock as another owner leaves it."""
    owner = replace(Owner.me(), **other)
    (folder / ".lock").write_text(json.dumps(asdict(owner)))
    return owner


def test_two_processes_do_not_hold_one_folder(kitchen, capfd, tmp_path):
    kitchen.write("r.yaml", "_target_: @.Count\nduration: 4 steps\nrun_dir: out\n")
    (tmp_path / "out").mkdir()
    with lock(tmp_path / "out"):
        assert kitchen.forked("run", "r.yaml") == 2
    assert f"out is in use by process {os.getpid()} on {socket.gethostname()}" in capfd.readouterr().err
    assert kitchen.main("run", "r.yaml") == 0


def test_of_eight_processes_at_once_one_has_it(tmp_path):
    def work():
        (tmp_path / f"ready-{os.getpid()}").touch()
        until((tmp_path / "go").exists)
        with lock(tmp_path):
            (tmp_path / f"had-{os.getpid()}").touch()
            until((tmp_path / "end").exists)

    children = [forked(work) for _ in range(8)]
    until(lambda: len(list(tmp_path.glob("ready-*"))) == 8)
    (tmp_path / "go").touch()
    losers = 0
    while losers < 7:
        assert os.waitstatus_to_exitcode(os.waitpid(-1, 0)[1]) == 2
        losers += 1
    assert len(list(tmp_path.glob("had-*"))) == 1
    (tmp_path / "end").touch()
    assert os.waitstatus_to_exitcode(os.waitpid(-1, 0)[1]) == 0 and len(children) == 8
    assert (tmp_path / ".lock").read_text() == ""


@pytest.mark.slow
def test_of_eight_processes_one_takes_over_from_the_dead(tmp_path):
    write(tmp_path, world="another boot")
    os.utime(tmp_path / ".lock", (1, 1))

    def work():
        with lock(tmp_path):
            (tmp_path / f"had-{os.getpid()}").touch()
            time.sleep(2)

    children = [forked(work) for _ in range(8)]
    assert sorted(map(ended, children)) == [0] + [2] * 7
    assert len(list(tmp_path.glob("had-*"))) == 1


def test_the_lock_of_a_killed_process_is_taken_over_at_once(tmp_path):
    def work():
        with lock(tmp_path):
            os.kill(os.getpid(), 9)

    assert ended(forked(work)) == -9
    assert (tmp_path / ".lock").read_text()
    began = time.monotonic()
    with lock(tmp_path):
        assert time.monotonic() - began < module.LOOK_S
        assert json.loads((tmp_path / ".lock").read_text())["pid"] == os.getpid()
    assert (tmp_path / ".lock").read_text() == ""


def test_a_process_that_ended_and_was_not_waited_for_is_dead(tmp_path):
    child = forked(lambda: lock(tmp_path).__enter__())
    until(lambda: module._start_time(child) == "dead")
    with lock(tmp_path):
        pass
    os.waitpid(child, 0)


def test_a_number_that_was_given_out_again_is_not_the_owner(tmp_path):
    write(tmp_path, born="1")
    with lock(tmp_path):
        pass


def test_an_owner_in_another_container_of_this_machine_is_not_judged_by_its_number(tmp_path):
    mine = Owner.me()
    assert replace(mine, world=mine.world.replace("pid:[", "pid:[9"), pid=999_999_9).is_dead() is None
    assert replace(mine, world="another boot").is_dead() is None, "the same name after a restart"
    assert replace(mine, host="renamed").is_dead() is False, "a name is for people"


def test_a_silent_owner_elsewhere_loses_it_and_that_is_said(tmp_path, capfd):
    write(tmp_path, host="node7", world="elsewhere")
    began = time.monotonic()
    with lock(tmp_path):
        assert time.monotonic() - began > module.LOOK_S
    said = " ".join(capfd.readouterr().err.split())
    assert f"taking over {tmp_path}"[:20] in said and "on node7 has sent no heartbeat" in said


@pytest.mark.parametrize("when", [-3600, 0, 3600], ids=["an hour ago", "now", "in an hour, by a clock that was set"])
def test_an_owner_elsewhere_that_beats_keeps_it_whatever_the_clock_says(tmp_path, when, monkeypatch):
    write(tmp_path, host="node7", world="elsewhere")

    def work():
        for _ in range(200):
            os.utime(tmp_path / ".lock", (time.time() + when, time.time() + when))
            time.sleep(0.05)

    child = forked(work)
    time.sleep(0.1)
    began = time.monotonic()
    with monkeypatch.context() as patient:
        for name in ("SILENCE_S", "LOOK_S"):
            patient.setattr(module, name, 60)
        with pytest.raises(RunFolderError, match=r"in use by process .* on node7"), lock(tmp_path):
            pass
    assert time.monotonic() - began < 8, "the first beat that is heard says enough"
    os.kill(child, signal.SIGKILL)
    ended(child)
    with lock(tmp_path):  # the time may still be one to come: it stands still, and that is enough
        pass


def test_a_holder_beats(tmp_path):
    with lock(tmp_path):
        os.utime(tmp_path / ".lock", (1, 1))
        until(lambda: (tmp_path / ".lock").stat().st_mtime > 1)


def test_a_lock_that_somebody_deleted_is_put_back(tmp_path):
    with lock(tmp_path):
        (tmp_path / ".lock").unlink()
        until((tmp_path / ".lock").exists)
        assert holder(tmp_path)[1]


@pytest.mark.parametrize("asks", [True, False], ids=["before each write", "at a heartbeat alone"])
def test_a_paused_holder_that_wakes_up_in_a_folder_of_another_stops_before_it_writes(tmp_path, capfd, asks):
    def work():
        with lock(tmp_path):
            for number in range(1000):
                if asks:
                    lease_registry.stop_if_lost()
                (tmp_path / "written").write_text(str(number))
                time.sleep(0.01)

    child = forked(work)
    until((tmp_path / "written").exists)
    os.kill(child, signal.SIGSTOP)
    time.sleep(0.1)
    theirs = write(tmp_path, host="node7", world="elsewhere")
    before = (tmp_path / "written").read_text()
    os.kill(child, signal.SIGCONT)
    assert ended(child) == lease_registry.EXIT_CODE
    if asks:
        assert int((tmp_path / "written").read_text()) <= int(before) + 1
    assert json.loads((tmp_path / ".lock").read_text())["token"] == theirs.token
    assert "was taken over by another process while this one was silent" in capfd.readouterr().err


def test_an_end_frees_no_lock_that_another_has_taken_meanwhile(tmp_path, monkeypatch):
    """Also where it was still ours when we looked, an instant before."""
    with lock(tmp_path):
        monkeypatch.setattr(module, "_is_mine", lambda *_: True)
        theirs = write(tmp_path, host="node7", world="elsewhere")
    assert _owner((tmp_path / ".lock").read_text()) == theirs


@pytest.mark.parametrize("text", ["", "\0\0\0\0", " \n"])
def test_an_empty_lock_holds_nobody_off(tmp_path, text):
    (tmp_path / ".lock").write_text(text)
    began = time.monotonic()
    with lock(tmp_path):
        assert time.monotonic() - began < module.LOOK_S


@pytest.mark.parametrize("text", ["nonsense", "a b 1", "[" * 9999, '{"pid": 1}', json.dumps([1]), "\xff\x00"])
@pytest.mark.slow
def test_a_lock_that_cannot_be_read_is_listened_to_and_then_taken(tmp_path, text):
    (tmp_path / ".lock").write_text(text, encoding="latin-1")
    began = time.monotonic()
    with lock(tmp_path):
        assert time.monotonic() - began > module.LOOK_S


def test_a_lock_that_is_a_link_is_not_written_through(tmp_path):
    (tmp_path / "elsewhere").write_text("precious")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunFolderError, match="its lock is a link"), lock(tmp_path / "run"):
        pass
    assert (tmp_path / "elsewhere").read_text() == "precious"


@pytest.mark.parametrize("make", ["mkdir", "fifo"])
def test_a_lock_that_is_no_file_is_said(tmp_path, make):
    (tmp_path / ".lock").mkdir() if make == "mkdir" else os.mkfifo(tmp_path / ".lock")
    with pytest.raises(RunFolderError, match=r"cannot (write in|hold)"), lock(tmp_path):
        pass


@pytest.mark.slow
def test_a_file_system_without_flock_still_gives_it_to_one(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(module.fcntl, "flock", refuse)
    monkeypatch.setattr(module, "_SETTLE_S", 3.0)  # a machine that is busy may leave a process waiting for a second

    def work():
        with lock(tmp_path):
            time.sleep(4)

    children = [forked(work) for _ in range(4)]
    assert sorted(map(ended, children)).count(0) == 1


def test_a_run_folder_that_is_deleted_meanwhile_ends_without_a_new_error(tmp_path):
    (tmp_path / "run").mkdir()
    with lock(tmp_path / "run"):
        while (tmp_path / "run").exists():  # at the moment of a heartbeat there is a second file in it
            shutil.rmtree(tmp_path / "run", ignore_errors=True)
        time.sleep(0.2)
    assert not (tmp_path / "run").exists()


def test_who_holds_a_folder_can_be_seen_without_touching_it(tmp_path):
    assert holder(tmp_path) == (None, False)
    with lock(tmp_path):
        owner, alive = holder(tmp_path)
        assert alive and owner.pid == os.getpid()
    assert holder(tmp_path) == (None, False)
    write(tmp_path, world="elsewhere")
    assert holder(tmp_path)[1], "it was written just now"
    os.utime(tmp_path / ".lock", (1, 1))
    assert not holder(tmp_path)[1]


SIGNALS = [(signal.SIGUSR1, 75), (signal.SIGTERM, 75), (signal.SIGINT, 130)]
COUNT = "_target_: @.Count\nduration: 4 steps\nrun_dir: out\n"


def one_sentence(said: str) -> bool:
    """Whether a run that a signal met before its work ended with nothing but that."""
    last = said.splitlines()[-1]
    return "Traceback" not in said and ("run the same command again" in last or last == "interrupted")


@pytest.mark.parametrize(("number", "status"), SIGNALS)
def test_a_signal_while_a_run_waits_for_a_lock_ends_it_in_a_sentence_and_leaves_the_lock(
    kitchen, capfd, monkeypatch, number, status
):
    kitchen.write("r.yaml", COUNT)
    (kitchen.folder / "out").mkdir()
    write(kitchen.folder / "out", world="elsewhere")
    before = (kitchen.folder / "out/.lock").read_text()
    monkeypatch.setattr(module, "info", lambda _: os.kill(os.getpid(), number))
    assert kitchen.main("run", "r.yaml") == status
    assert one_sentence(capfd.readouterr().err)
    assert [path.name for path in (kitchen.folder / "out").iterdir()] == [".lock"]
    assert (kitchen.folder / "out/.lock").read_text() == before
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL


@pytest.mark.parametrize(("number", "status"), SIGNALS)
@pytest.mark.parametrize("where", [
    "nemo_vfm.cli.verbs.run.composed_recipe", "nemo_vfm.core.ranks.adopt_slurm",
    "nemo_vfm.runtime.checks.meta_build.build_on_meta", "nemo_vfm.config.writes_outside",
    "nemo_vfm.runtime.run_folder.open_folder", "nemo_vfm.runtime.run_folder.manifest",
])  # fmt: skip
@pytest.mark.parametrize("hidden", [False, True], ids=["", "behind an error of an import"])
def test_a_signal_at_any_moment_before_the_work_ends_a_run_in_a_sentence(
    kitchen, capfd, monkeypatch, number, status, where, hidden
):
    kitchen.write("r.yaml", COUNT)

    def interrupted(*_args: object, **_more: object) -> None:
        try:
            os.kill(os.getpid(), number)
        except BaseException as error:
            if hidden:
                raise ImportError("a library cannot be loaded") from error
            raise

    monkeypatch.setattr(where, interrupted)
    assert kitchen.main("run", "r.yaml") == status
    assert one_sentence(capfd.readouterr().err)


@pytest.mark.slow
def test_a_signal_while_one_of_two_ranks_waits_for_a_lock_ends_both_with_75(tmp_path):
    (tmp_path / "r.yaml").write_text("_target_: tests.support.spread.Together\nrun_dir: out\n")
    (tmp_path / "out").mkdir()
    write(tmp_path / "out", world="elsewhere")
    words = [sys.executable, "-m", "nemo_vfm", "run", "r.yaml", "--trust", "tests.support.spread"]
    run = preloaded.Started(words, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, err=tmp_path / "said")
    until(lambda: "is locked by" in (tmp_path / "said").read_text(), 120)
    run.send_signal(signal.SIGUSR1)
    assert run.wait(60) == 75
    assert one_sentence((tmp_path / "said").read_text())
    assert not any("Traceback" in file.read_text() for file in (tmp_path / "out").glob("ranks/*"))


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no start times to read")
def test_a_process_is_known_by_its_start():
    assert module._start_time(os.getpid()).isdigit() and module._start_time(2**22 + 1) == "never"


@pytest.mark.parametrize(("pid", "right"), [
    (1, True), (2**31 - 1, True), (0, False), (2**31, False), (-1, False), (True, False), ("1", False),
])  # fmt: skip
def test_an_owner_is_a_process_that_can_be(pid, right):
    said = json.dumps({"host": "a", "pid": pid, "born": "b", "world": "c", "token": "d"})
    assert (_owner(said) is not None) is right
