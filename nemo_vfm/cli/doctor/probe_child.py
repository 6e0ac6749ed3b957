"""Runs a probe in a process of its own with a time limit, and always returns an answer.

`python -m nemo_vfm.cli.doctor.probe_child NAME` is that process; the last line it prints is the answer.
"""

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from nemo_vfm.cli.doctor.finding import State

LIMIT_S = 60.0
_MARK = "nemo_vfm doctor answers: "
_PACKAGE_PARENT = str(Path(__file__).resolve().parents[3])


@dataclass(frozen=True, slots=True)
class Answer:
    """How a probe ended."""

    state: State
    detail: str


def ask(name: str, limit_s: float = LIMIT_S) -> Answer:
    """Run a probe apart."""
    paths = [_PACKAGE_PARENT, os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    # -P: a file `torch.py` in the working directory is not torch. A session of its own, so that all of it can be ended.
    process = subprocess.Popen(  # noqa: S603 (our own module, one of our names)
        [sys.executable, "-P", "-m", __name__, name], env=environment, start_new_session=True, text=True,
        errors="replace", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        out, complaints = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return Answer("broken", f"did not answer within {limit_s:.0f} s")
    answers = [line.removeprefix(_MARK) for line in out.splitlines() if line.startswith(_MARK)]
    return Answer(**json.loads(answers[-1])) if answers else _died(process.returncode, complaints)


def _died(status: int, complaints: str) -> Answer:
    last = next((line for line in reversed(complaints.splitlines()) if line.strip()), "")
    try:
        how = f"ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
    except ValueError:
        how = f"ended by signal {-status}"
    return Answer("broken", f"{how}{f': {last.strip()[:200]}' if last else ''}")


def answer(name: str) -> Answer:
    """Run a probe here."""
    from nemo_vfm.cli.doctor.probes import PROBES
    from nemo_vfm.core.errors import MissingPackage, UserError

    try:
        return Answer("ok", PROBES[name]())
    except MissingPackage as error:
        # Not installed, or installed and something that it needs is not: then it cannot be used as it is.
        cause = error.__cause__
        absent = isinstance(cause, ModuleNotFoundError)
        return Answer("missing" if absent else "broken", f"{type(cause).__name__}: {cause}"[:300])
    except UserError as error:
        return Answer("missing", str(error))
    except BaseException as error:  # SystemExit at import too: whatever it is, it is the finding
        return Answer("broken", f"{type(error).__name__}: {str(error).strip()[:300]}")


def _main(name: str) -> None:
    found = answer(name)
    sys.stdout.write(f"\n{_MARK}{json.dumps({'state': found.state, 'detail': found.detail})}\n")
    sys.stdout.flush()
    os._exit(0)  # threads and handlers of what was imported do not matter any more


if __name__ == "__main__":
    _main(sys.argv[1])
