# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Processes that wait for calls: they end with whoever started them, however that ends."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.repository import ROOT

STARTS = """
import sys, time
from nemo_vfm.parallel.pool import Pool
if __name__ == "__main__":
    with Pool(2) as pool:
        print(*(process.pid for process, _ in pool._started()), flush=True)
        time.sleep(60)
"""


def is_there(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda one: one.name)
def test_no_process_outlives_the_one_that_started_it(number: signal.Signals, tmp_path):
    script = tmp_path / "starts.py"
    script.write_text(STARTS)
    running = subprocess.Popen([sys.executable, str(script)], cwd=ROOT, stdout=subprocess.PIPE,
                               stderr=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": str(ROOT)})  # fmt: skip
    assert running.stdout is not None
    members = [int(word) for word in running.stdout.readline().split()]
    assert len(members) == 2 and all(map(is_there, members))
    running.send_signal(number)
    running.wait(30)
    until = time.monotonic() + 30
    while any(map(is_there, members)) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(map(is_there, members))
