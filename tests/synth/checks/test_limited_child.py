"""Attacks the limited child, by programs such as a model might write."""

import ctypes
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from nemo_vfm.core.errors import UserError
from nemo_vfm.synth.checks.kernel_limits import landlock_version
from nemo_vfm.synth.checks.limited_child import Limits, protections, run_python

CANARY = "sk-canary-0123456789"
SHORT = Limits(cpu_s=1, wall_s=5.0)

#: Asked of the kernel, not of our code: a fault in it must turn these tests red and not have them skipped.
CAN_LIMIT = (
    sys.platform.startswith("linux")
    and os.uname().machine in ("x86_64", "aarch64")
    and Path("/proc/sys/kernel/seccomp/actions_avail").exists()
    and ctypes.CDLL(None).syscall(444, None, 0, 1) > 0  # the version of Landlock
)
pytestmark = pytest.mark.skipif(not CAN_LIMIT, reason="this machine cannot limit a program")


def test_what_the_kernel_offers_is_used():
    here = protections()
    assert here.files and here.network and here.processes, here
    if shutil.which("unshare") is None:
        pytest.skip("there is no unshare to compare with")
    alone = subprocess.run(["unshare", "--user", "--net", "--mount", "--map-root-user", "true"], capture_output=True)
    assert ("namespaces" in here.layers) == here.disk == (alone.returncode == 0)


def test_a_program_reads_stdin_and_its_files_and_says_that_it_reached_its_end():
    source = "import helper, sys\nprint(helper.twice(int(input())), input())\nprint('warned', file=sys.stderr)"
    files = {"helper.py": "def twice(x):\n    return 2 * x\n", "data/one.txt": "1"}
    done = run_python(source, stdin="21\nzwölf\n", files=files)
    assert (done.ending, done.reached_end) == ("ok", True), done
    assert (done.stdout, done.stderr) == ("42 zwölf\n", "warned\n")


@pytest.mark.parametrize("leave", ["import sys\nsys.exit(0)", "import os\nos._exit(0)", "raise SystemExit"])
def test_a_program_that_leaves_before_its_tests_does_not_reach_its_end(leave):
    done = run_python(f"{leave}\nassert False")
    assert (done.ending, done.reached_end) == ("ok", False)


@pytest.mark.parametrize("wrong", ["1 / 0", "def f(:", "import sys\nsys.exit(3)", "import sys\nsys.exit(97)", "\0"])
def test_a_program_that_fails_is_an_error(wrong):
    done = run_python(wrong)
    assert (done.ending, done.reached_end) == ("error", False)


def test_a_traceback_shows_the_program_and_nothing_of_ours():
    done = run_python("def f():\n    return 1 / 0\nf()")
    assert "return 1 / 0" in done.stderr and "ZeroDivisionError" in done.stderr
    assert "nemo_vfm" not in done.stderr and "child_start" not in done.stderr


def test_a_program_sees_nothing_of_our_package():
    source = "import sys\nprint('nemo_vfm' in sys.modules, sys.argv, __name__)\nimport nemo_vfm"
    done = run_python(source)
    assert done.stdout == "False ['program.py'] __main__\n" and "No module named 'nemo_vfm'" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "ending"),
    [
        ("while True: pass", "timeout"),
        ("import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass", "timeout"),
        ("x = bytearray(10 * 2**30)", "memory"),
        ("x = []\nwhile True: x.append(bytes(2**20))", "memory"),
        ("while True: print('y' * 1000)", "output"),
        ("import os\nwhile True: os.write(2, b'y' * 1000)", "output"),
        ("open('big', 'wb').write(b'x' * 2**24)", "error"),
    ],
)
def test_a_program_that_takes_too_much_is_ended(source, ending):
    done = run_python(source, limits=SHORT)
    assert done.ending == ending, done
    assert len(done.stdout) + len(done.stderr) <= SHORT.output_kb * 1024


def test_a_program_cannot_fill_the_disk():
    if not protections().disk:
        pytest.skip("this machine allows no namespaces, so there is no small disk")
    done = run_python("for i in range(10**6): open(f'{i}', 'wb').write(b'x' * 2**20)", limits=SHORT)
    assert done.ending == "error" and "No space left" in done.stderr


def test_a_program_that_sleeps_or_closes_its_outputs_is_ended_by_wall_time():
    limits = Limits(wall_s=0.4)
    closing = "import os, time\nos.close(1)\nos.close(2)\ntime.sleep(60)"
    for source in ("import time\ntime.sleep(60)", closing, "import signal\nsignal.pause()"):
        done = run_python(source, limits=limits)
        assert done.ending == "timeout" and done.seconds < 30


FORKS = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
SIGCHLD = 17
for start in (os.fork, libc.fork, lambda: libc.syscall(57), lambda: libc.syscall(56, SIGCHLD, 0, 0, 0, 0),
              lambda: libc.syscall(435, 0, 0)):
    try:
        if start() >= 0:
            print('forked')
    except OSError:
        pass
try:
    os.execv(sys.executable, [sys.executable, '-c', 'print("ran")'])
except OSError:
    print('no exec')
import threading
try:
    threading.Thread(target=print).start()
except RuntimeError:
    print('no thread')
while True:
    os.fork()
"""


def test_a_program_starts_no_process_and_no_thread():
    done = run_python(FORKS, limits=SHORT)
    assert done.ending == "error" and done.stdout == "no exec\nno thread\n" and "PermissionError" in done.stderr


def test_threads_are_possible_where_they_are_asked_for_and_processes_are_not():
    thread = "threading.Thread(target=print, args=('from it',))"
    source = f"import threading, os\nt = {thread}\nt.start()\nt.join()\nos.fork()"
    done = run_python(source, limits=Limits(threads=True))
    assert done.ending == "error" and done.stdout == "from it\n" and "PermissionError" in done.stderr


def test_a_double_fork_with_a_session_of_its_own_outlives_nothing():
    before = _children()  # of other tests in this process
    source = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        time.sleep(60)"
    assert run_python(source).ending == "error"
    assert {*_children()} <= {*before}


def _children(parent: int | None = None) -> list[str]:
    """Processes that this one, or another, started and that are still there."""
    number = parent or os.getpid()
    return Path(f"/proc/{number}/task/{number}/children").read_text().split()


@pytest.mark.slow
def test_a_program_ends_with_its_parent_even_if_that_is_killed(tmp_path):
    code = (
        "from nemo_vfm.synth.checks.limited_child import run_python\n"
        "run_python('import os, time\\nos.close(1)\\ntime.sleep(60)')"
    )
    with subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "TMPDIR": str(tmp_path)}) as parent:
        assert _until(lambda: _children(parent.pid)), "no program was started"
        (child,) = _children(parent.pid)
        assert _until(lambda: "limited-" in str(Path(f"/proc/{child}/cwd").readlink()))
        time.sleep(0.3)  # the program itself has begun, or will find that its parent is another
        parent.kill()
    assert _until(lambda: not Path(f"/proc/{child}").exists())


def _until(holds, seconds: float = 20.0):
    end = time.monotonic() + seconds
    while not (found := holds()) and time.monotonic() < end:
        time.sleep(0.02)
    return found


READS = """
import os, pathlib
for path in {paths!r}:
    try:
        print(pathlib.Path(path).read_bytes())
    except OSError as error:
        print(type(error).__name__)
"""


def test_no_file_elsewhere_is_read_not_through_a_link_either(tmp_path, monkeypatch):
    secret = tmp_path / ".ssh" / "id_rsa"
    secret.parent.mkdir()
    secret.write_text(CANARY)
    monkeypatch.setenv("API_KEY", CANARY)
    paths = [str(secret), f"/proc/{os.getpid()}/environ", f"/proc/{os.getpid()}/mem", "/proc/self/environ",
             "/etc/passwd", __file__]  # fmt: skip
    link = f"import os\nos.symlink({str(secret)!r}, 'link')\nos.symlink('/', 'root')\n"
    done = run_python(link + READS.format(paths=[*paths, "link", "root" + str(secret)]))
    assert done.ending == "ok" and done.stdout.split() == ["PermissionError"] * 8, done


def test_the_environment_is_empty_and_no_descriptor_is_inherited(monkeypatch, tmp_path):
    monkeypatch.setenv("API_KEY", CANARY)
    with (tmp_path / "open").open("w") as file:
        os.set_inheritable(file.fileno(), True)
        done = run_python("import os\nprint(dict(os.environ))\nfor n in range(64):\n    try:\n        os.fstat(n)\n"
                          "        print(n)\n    except OSError:\n        pass")  # fmt: skip
    assert done.stdout.split() == ["{}", "0", "1", "2"]


WRITES = """
import os, shutil
target, folder = {target!r}, {folder!r}
def link():
    os.symlink(target, 'link')
    open('link', 'w').write('changed')
def hard_link():
    os.link(target, 'hard')
    open('hard', 'w').write('changed')
ways = [lambda: open(target, 'w'), lambda: open(folder + '/new', 'w'), lambda: os.remove(target), link, hard_link,
        lambda: os.truncate(target, 0), lambda: os.chmod(target, 0o777), lambda: os.chown(target, 1, 1),
        lambda: os.utime(target, (0, 0)), lambda: os.rename(target, 'mine'), lambda: os.mkdir(folder + '/sub'),
        lambda: os.setxattr(target, 'user.x', b'y'), lambda: os.symlink('x', folder + '/s'),
        lambda: os.mkfifo('pipe'), lambda: shutil.rmtree(folder), lambda: os.open(target, os.O_RDONLY | os.O_TRUNC)]
for number, way in enumerate(ways):
    try:
        way()
        print('done', number)
    except OSError:
        pass
open('own', 'w').write('fine')
"""


def test_nothing_is_written_elsewhere(tmp_path):
    target = tmp_path / "target"
    target.write_text("as it was")
    before = target.stat()
    done = run_python(WRITES.format(target=str(target), folder=str(tmp_path)))
    assert (done.ending, done.stdout, done.stderr) == ("ok", "", "")
    after = target.stat()
    assert target.read_text() == "as it was" and [*tmp_path.iterdir()] == [target]
    assert (before.st_mode, before.st_mtime_ns, before.st_uid) == (after.st_mode, after.st_mtime_ns, after.st_uid)


ASKS_DEVICES = """
import fcntl, os
own = os.open('own', os.O_CREAT | os.O_RDWR)
#: Flags, versions and extended attributes of files, clones, frozen and trimmed disks, keys, letters typed at terminals.
for wish in (0x40086602, 0x40046602, 0x401C5820, 0x40087602, 0x40049409, 0x4020940D, 0xC0045877, 0xC0185879, 0x800C6613,
             0x41009432, 0x5412, 0x541C, 0x8901, 0x8902, 0x40086602 | 1 << 31):
    for file in (own, 0, os.open('.', os.O_RDONLY)):
        try:
            fcntl.ioctl(file, wish, bytes(64))
            print('done', hex(wish))
        except OSError as error:
            if error.errno != 1:
                print('asked', hex(wish), error)
os.set_inheritable(own, True)
os.set_blocking(own, False)
print(os.isatty(0), os.get_inheritable(own))
"""


def test_nothing_is_asked_of_a_file_system_or_a_terminal_that_changes_it():
    done = run_python(ASKS_DEVICES)
    assert (done.ending, done.stdout) == ("ok", "False True\n"), done


def test_the_folder_is_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    done = run_python("import os\nos.mkdir('closed', 0)\nopen('file', 'w')\nprint(os.getcwd())")
    assert Path(done.stdout.strip()).parent == tmp_path and not [*tmp_path.iterdir()]


CONNECTS = """
import socket, ctypes
try:
    socket.create_connection(('127.0.0.1', {port}), timeout=1)
    print('connected')
except OSError as error:
    print(type(error).__name__)
"""


@pytest.mark.parametrize("without", [(), ("seccomp",), ("namespaces",), ("seccomp", "landlock")])
def test_nothing_reaches_a_server_on_this_machine_through_any_one_layer(without):
    if {*without} == {"seccomp", "landlock"} and "namespaces" not in protections().layers:
        pytest.skip("this machine allows no namespaces")
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.05)
        done = run_python(CONNECTS.format(port=server.getsockname()[1]), without=without, strict=False)
        with pytest.raises(TimeoutError):
            server.accept()
    assert done.ending == "ok" and done.stdout.strip().endswith("Error")


@pytest.mark.skipif(landlock_version() < 6, reason="this kernel's Landlock knows neither the network nor signals")
def test_landlock_alone_keeps_a_program_from_servers_and_from_other_processes():
    layers = ("seccomp", "namespaces")
    with socket.create_server(("127.0.0.1", 0)) as server, subprocess.Popen(["sleep", "60"]) as victim:
        done = run_python(CONNECTS.format(port=server.getsockname()[1]), without=layers, strict=False)
        assert done.stdout == "PermissionError\n"
        done = run_python(f"import os\nos.kill({victim.pid}, 9)", without=layers, strict=False)
        assert "PermissionError" in done.stderr and victim.poll() is None
        victim.kill()


def test_the_same_program_reaches_the_server_where_nothing_is_limited():
    with socket.create_server(("127.0.0.1", 0)) as server:
        source, layers = CONNECTS.format(port=server.getsockname()[1]), ("seccomp", "namespaces", "landlock")
        assert run_python(source, without=layers, strict=False).stdout == "connected\n"


#: Everybody, and the group of the tests themselves, are only asked for (signal 0): a fault here must not kill them.
KILLS = """
import ctypes, fcntl, os, resource, signal
libc = ctypes.CDLL(None)
r, w = os.pipe()
def by_owner():
    fcntl.fcntl(r, fcntl.F_SETOWN, {parent})
    fcntl.fcntl(r, 10, signal.SIGKILL)
ways = [lambda: os.kill({parent}, 9), lambda: os.kill(-1, 0), lambda: os.killpg({group}, 0), by_owner,
        lambda: signal.pidfd_send_signal(os.pidfd_open({parent}), 9), lambda: os.setpriority(0, {parent}, 19),
        lambda: resource.prlimit({parent}, resource.RLIMIT_NOFILE, (3, 3))]
for number, way in enumerate(ways):
    try:
        way()
        print('done', number)
    except OSError:
        pass
for number in (62, 200, 129):
    if libc.syscall(number, {parent}, 9, 0) == 0:
        print('done', number)
if libc.ptrace(16, {parent}, 0, 0) == 0:
    print('attached')
"""


def test_other_processes_are_neither_killed_nor_changed():
    with subprocess.Popen(["sleep", "60"]) as victim:
        source = KILLS.format(parent=victim.pid, group=os.getpgrp())
        done = run_python(source)
        assert (done.ending, done.stdout, done.stderr) == ("ok", "", ""), done
        assert victim.poll() is None
        victim.kill()


def test_a_program_may_still_abort_itself():
    assert run_python("import os\nos.abort()").ending == "error"


def test_empty_stdin_ends_input_at_once():
    done = run_python("input()")
    assert done.ending == "error" and "EOFError" in done.stderr


def test_a_parent_with_no_stdin_and_stdout_of_its_own_gets_the_same():
    code = (
        "import os, sys\nos.close(0)\nos.close(1)\n"
        "from nemo_vfm.synth.checks.limited_child import run_python\n"
        "done = run_python('print(input())', stdin='x')\nos.write(2, f'{done.ending} {done.stdout}'.encode())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stderr == "ok x\n"


@pytest.mark.parametrize("without", [("landlock",), ("seccomp",), ("seccomp", "namespaces")])
def test_a_strict_run_is_refused_with_a_reason_where_it_cannot_be_limited(without):
    done = run_python("print('ran')", without=without)
    assert done.ending == "refused" and done.stdout == "" and "cannot be limited" in done.stderr


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/../../x", "", ".stdin"])
def test_a_file_with_a_name_outside_the_folder_is_refused(name):
    done = run_python("print('ran')", files={name: ""})
    assert done.ending == "refused" and "relative path" in done.stderr


def test_wrong_arguments_are_named():
    with pytest.raises(UserError, match="wall_s must be more than 0, not -1"):
        Limits(wall_s=-1)
    with pytest.raises(UserError, match="no protection called 'magic'"):
        run_python("", without=["magic"])


def test_many_threads_run_programs_at_once_and_each_gets_its_own_answer():
    before = _children()
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda i: run_python(f"print(input(), {i})", stdin=f"{i}"), range(24)))
    assert [done.stdout for done in found] == [f"{i} {i}\n" for i in range(24)]
    assert {*_children()} <= {*before}


def test_the_order_of_a_set_is_the_same_in_each_run():
    source = "print(list({'a', 'b', 'c', 'd', 'e', 'f'}))"
    assert run_python(source).stdout == run_python(source).stdout


def test_a_run_leaves_no_descriptor_open():
    before = len([*Path("/proc/self/fd").iterdir()])
    for source in ("", "1/0", "while True: print('y' * 1000)"):
        run_python(source)
    assert len([*Path("/proc/self/fd").iterdir()]) == before
