"""Tests that a log of 2 GB is imported in at most 1 GB of memory, and that two kills change no byte."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nemo_vfm.core.storage.files import sha256_folder
from tests.support.criteo_files import write_criteo
from tests.support.repository import ROOT

pytestmark = pytest.mark.soak
_ROWS = 8_060_000  # 2.0 GB
_CODE = """
import sys
from pathlib import Path
from nemo_vfm.core.types.job import Run
from nemo_vfm.recsys.import_log import ImportLog
from nemo_vfm.recsys.log_import.hashed_ids import HashedIds
from nemo_vfm.recsys.sources.criteo_tsv import CriteoTsv
source = CriteoTsv(paths=[Path(sys.argv[1])])
ImportLog(source=source, ids=HashedIds(num_rows=1_000_000)).run(Run(Path(sys.argv[2])))
"""


def imported(log: Path, folder: Path, kill_at_part: int | None = None) -> tuple[float, float]:
    """Import in a process of its own, which dies once so many parts are there: its peak RSS in GB and CPU seconds."""
    folder.mkdir(exist_ok=True)
    process = subprocess.Popen([sys.executable, "-c", _CODE, str(log), str(folder)], cwd=ROOT)
    while kill_at_part is not None and len([*folder.glob("table/part-*")]) < kill_at_part:
        assert process.poll() is None, "it ended before it could be killed"
        time.sleep(0.05)
    if kill_at_part is not None:
        process.send_signal(signal.SIGKILL)
    _, status, usage = os.wait4(process.pid, 0)
    assert status == (0 if kill_at_part is None else signal.SIGKILL)
    return usage.ru_maxrss * 1024 / 1e9, usage.ru_utime + usage.ru_stime


def test_two_gigabytes_fit_into_one_and_two_kills_change_no_byte(tmp_path):
    log = write_criteo(tmp_path / "log.tsv", _ROWS)
    assert log.stat().st_size >= 2e9
    draw = random.Random(5)
    kills = sorted(draw.sample(range(1, 7), 2))
    used = [imported(log, tmp_path / "killed", part) for part in kills]
    used += [imported(log, tmp_path / "killed"), imported(log, tmp_path / "whole")]
    rows = json.loads((tmp_path / "killed/ledger.json").read_text())["rows"]
    assert rows == {"in": _ROWS, "kept": _ROWS, "dropped": {}, "failed": {}}
    assert max(peak for peak, _ in used) <= 1.0, used
    sys.stderr.write(f"log {log.stat().st_size / 1e9:.2f} GB, killed at parts {kills}, (peak GB, CPU s): {used}\n")
    assert sha256_folder(tmp_path / "killed") == sha256_folder(tmp_path / "whole")
