"""Tests that no process outlives the one that started it or imports what lies around, and what is said of its end."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from nemo_vfm.core.process import how_it_ended
from tests.support.processes import all_end
from tests.support.repository import ROOT

SCRIPTS = {"child": """
import time
from nemo_vfm.core.process import follow_parent, start_child
def serve(pipe):
    follow_parent()
    open("hangs", "w")
    time.sleep(60)
if __name__ == "__main__":
    start_child(serve)[0].join()
""", "sandbox": """
from nemo_vfm.curate.examine.sandbox import Child, ChildLimits
from tests.curate.test_sandbox import Misbehave
if __name__ == "__main__":
    for _ in Child(Misbehave(), ChildLimits()).ask({"do": "hang"}, megapixels=0.0):
        open("hangs", "w")
""", "module": """
from nemo_vfm.core.process import run_module
run_module("timeit", ["-n1", "-r1", "open('hangs', 'w'); import time; time.sleep(60)"], env={})
"""}  # fmt: skip


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
@pytest.mark.parametrize("name", ["INT child", "TERM child", "KILL child", "KILL sandbox", "INT module", "KILL module"])
def test_no_process_outlives_the_one_that_started_it(name: str, tmp_path: Path):
    number, script = name.split()
    (tmp_path / "starts.py").write_text(SCRIPTS[script])
    (cwd := tmp_path / "cwd").mkdir()
    (cwd / "selectors.py").write_text("raise ImportError('not that of Python')")
    running = subprocess.Popen([sys.executable, tmp_path / "starts.py"], cwd=cwd, stderr=subprocess.DEVNULL,
                               env={**os.environ, "PYTHONPATH": str(ROOT)})  # fmt: skip
    while not (cwd / "hangs").exists():
        assert running.poll() is None
        time.sleep(0.05)
    members = psutil.Process(running.pid).children(recursive=True)
    running.send_signal(signal.Signals[f"SIG{number}"])
    running.wait(30)
    assert members and all_end(member.pid for member in members)


def test_an_end_is_told_by_a_signals_name_or_a_status_and_the_last_line():
    assert how_it_ended(3) == "ended with status 3" and how_it_ended(-9) == "was killed by SIGKILL"
    assert how_it_ended(-50, "first\n last \n\n") == "was killed by signal 50: last"
