"""Limits the process that it runs in, and then runs a program that a model wrote in it.

`limited_child` starts it in an interpreter of its own. It imports little, since its start is paid for each program.
"""

import ctypes
import io
import json
import linecache
import os
import resource
import signal
import sys
import sysconfig
import traceback
from types import ModuleType
from typing import Any

from nemo_vfm.synth.checks import kernel_limits

#: What the process exits with where its program ran to its last line, and where it had no memory left.
AT_ITS_END, OUT_OF_MEMORY = 97, 98
_NAME = "program.py"
_NO_NEW_PRIVILEGES, _PARENT_DEATH_SIGNAL = 38, 1
#: What a program may read beside its own folder: shared libraries and time zones, for modules loaded late.
_SYSTEM = ["/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache", "/usr/share/zoneinfo", "/dev/urandom"]


def main(report: int) -> None:
    """Read the order from stdin, limit this process, say in the report how, and run the program.

    Args:
        report: a descriptor; it gets JSON with `layers`, or with `refused` and a reason, and is closed before the
            program begins.
    """
    order = json.loads(sys.stdin.buffer.read())
    try:
        # Set limits and leave the network; the folder becomes a small disk where the kernel allows it.
        libc = ctypes.CDLL(None)
        libc.prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != order["parent"]:
            os.kill(os.getpid(), signal.SIGKILL)  # the parent died before the line above
        libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
        for name, (soft, hard) in order["rlimits"].items():
            resource.setrlimit(getattr(resource, name), (soft, hard))
        without, layers = order["without"], ["rlimits"]
        if "namespaces" not in without and kernel_limits.leave_network():
            layers.append("namespaces")
            if kernel_limits.mount_small_disk(order["folder"], order["disk_kb"]):
                layers.append("small disk")
        os.chdir(order["folder"])
        for name, text in {**order["files"], ".stdin": order["stdin"]}.items():
            if folder := os.path.dirname(name):  # noqa: PTH120 - pathlib costs 5 ms
                os.makedirs(folder, exist_ok=True)  # noqa: PTH103
            with open(name, "w", encoding="utf-8", errors="surrogatepass", newline="") as file:  # noqa: PTH123
                file.write(text)
        descriptor = os.open(".stdin", os.O_RDONLY)
        os.unlink(".stdin")  # noqa: PTH108
        os.dup2(descriptor, 0)
        os.close(descriptor)
        # The reader that took the order stands at the end of it.
        sys.stdin = io.TextIOWrapper(io.FileIO(0, closefd=False), encoding="utf-8", errors="surrogateescape")
        layers += _close_doors(order)
        missing = order["strict"] and _missing_layers(layers)
        answer = {"refused": missing} if missing else {"layers": layers}
    except (OSError, ValueError) as error:
        answer = {"refused": f"the child process could not be prepared: {error}"}
    os.write(report, json.dumps(answer).encode())
    os.close(report)
    if "layers" in answer:
        _run(order["source"])


def _close_doors(order: dict[str, Any]) -> list[str]:
    """Limit files, rights and system calls; the order matters, since each takes away what the one before needs."""
    without, layers = order["without"], []
    if kernel_limits.drop_capabilities():
        layers.append("no capabilities")
    own = [sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), f"{sys.base_exec_prefix}/lib"]
    if "landlock" not in without and kernel_limits.limit_files(
        [*own, *_SYSTEM], [order["folder"], "/dev/null", "/dev/zero"]
    ):
        layers.append("landlock")
    if "seccomp" not in without and kernel_limits.refuse_calls(order["threads"]):
        layers.append("seccomp")
    return layers


def _missing_layers(layers: list[str]) -> str:
    """What a strict run lacks; empty where it lacks nothing."""
    lacks = [] if "landlock" in layers else ["files cannot be limited (no Landlock in this kernel)"]
    if not {"seccomp", "namespaces"} & {*layers}:
        lacks.append("the network cannot be limited (neither seccomp nor namespaces)")
    if "seccomp" not in layers:
        lacks.append("processes cannot be limited (no seccomp filter for this machine)")
    return f"{'; '.join(lacks)}; pass strict=False to run it anyway" if lacks else ""


def _run(source: str) -> None:
    """Run the program as `__main__`, and exit."""
    module = ModuleType("__main__")
    for name in [name for name in sys.modules if name.partition(".")[0] == "nemo_vfm"]:
        del sys.modules[name]
    sys.modules["__main__"] = module
    sys.path[0], sys.argv = os.getcwd(), [_NAME]  # noqa: PTH109
    os.environ.clear()
    lines = source.splitlines(keepends=True)
    linecache.cache[_NAME] = (len(source), None, lines, _NAME)  # so that a traceback shows them
    try:
        exec(compile(source, _NAME, "exec"), module.__dict__)  # noqa: S102 - what all of this is for
    except MemoryError:
        os.write(2, b"MemoryError\n")
        sys.exit(OUT_OF_MEMORY)
    except SystemExit as end:
        sys.exit(0 if end.code in (None, 0) else end.code if isinstance(end.code, str) else 1)
    except BaseException as error:
        inside = error.__traceback__.tb_next if error.__traceback__ else None
        traceback.print_exception(error.with_traceback(inside))
        sys.exit(1)
    sys.exit(AT_ITS_END)
