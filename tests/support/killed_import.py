"""Imports small logs in processes that are killed at file operations given by their numbers, and then to the end.

    python -m tests.support.killed_import FOLDER NUMBER ...

FOLDER holds criteo.tsv, kuairand.csv and clicks.csv. Operations on the run folders of the same names are counted; the
last line says how many the last process needed. Processes are forked, since torch takes seconds to import.
"""

import os
import signal
import sys
from pathlib import Path

from nemo_vfm.core.types.job import Run
from nemo_vfm.recsys.import_log import ImportLog
from nemo_vfm.recsys.log_import.frequent_ids import FrequentIds
from nemo_vfm.recsys.log_import.hashed_ids import HashedIds
from nemo_vfm.recsys.sources import text_blocks
from nemo_vfm.recsys.sources.criteo_tsv import CriteoTsv
from nemo_vfm.recsys.sources.kuairand_csv import KuaiRandCsv
from nemo_vfm.recsys.sources.text_log import TextLog

#: Not every one: what pyarrow and safetensors write is opened by them.
_EVENTS = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir"}


def imports(folder: Path) -> dict[str, ImportLog]:
    """A log that keeps its order, and two that are clustered, one of them with weights, each of several blocks."""
    rules = {"on_bad_row": "drop", "keep_fraction": 0.8,
             "rows_per_part": 1024, "rows_per_group": 512, "memory_bytes": 1 << 20}  # fmt: skip
    return {
        "criteo": ImportLog(source=CriteoTsv(paths=[folder / "criteo.tsv"]), ids=FrequentIds(num_rows=500), **rules),
        "kuairand": ImportLog(
            source=KuaiRandCsv(paths=[folder / "kuairand.csv"], history=5), ids=HashedIds(num_rows=1000), **rules
        ),
        "clicks": ImportLog(
            source=TextLog(
                paths=[folder / "clicks.csv"],
                session="user",
                time=None,
                labels=["click"],
                features=["item"],
                weight="w",
            ),
            ids=FrequentIds(num_rows=500),
            keep_negatives=0.3,
            **rules,
        ),
    }


def run_imports(folder: Path, last: int | None) -> int:
    """Import all, and return how many file operations there were; the last one is not survived."""
    places, count = tuple(f"{folder / name}/" for name in imports(folder)), 0

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal count
        if event in _EVENTS and any(str(one).startswith(places) for one in arguments):
            count += 1
            if count == last:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)
    for name, job in imports(folder).items():
        (folder / name).mkdir(exist_ok=True)
        job.run(Run(folder / name, seed=1))
    return count


def main() -> None:
    """Be killed at each of the operations, one process after another, and then run undisturbed."""
    folder = Path(sys.argv[1])
    text_blocks.BLOCK_BYTES = 100_000
    for number in map(int, sys.argv[2:]):
        if not (child := os.fork()):
            run_imports(folder, number)
            os._exit(0)
        if os.waitpid(child, 0)[1] != signal.SIGKILL:
            sys.exit(f"the process that was to be killed at operation {number} was not")
    sys.stdout.write(f"{run_imports(folder, None)}\n")


if __name__ == "__main__":
    main()
