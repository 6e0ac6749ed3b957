"""Measures the peak memory of a curation by the number of its videos, and what each further video adds.

    python benchmarks/curation_memory.py [--films 20,200] [--recipe NAME] [--json FILE]

Each video has two shots of two seconds at 128x96, all of them different. A run is a process of its own, `nemo-vfm run`
with `executor=inline executor.isolated=false`: probing, decoding, every stage, encoding, decisions and writing share
that process, so that memory kept by any of them is seen. The system reports its peak resident set.
kb_per_film is the rise from the least to the largest number of videos, over the videos between them.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.support.films import pan, write_film  # noqa: E402


def peak_mb(films: Path, recipe: str, place: Path) -> float:
    """Of one run over a folder, in 10^6 bytes."""
    words = ["run", str(ROOT / "recipes/curation" / f"{recipe}.yaml"), f"source.path={films}", f"run_dir={place}",
             "executor=inline", "executor.isolated=false"]  # fmt: skip
    began = time.perf_counter()
    said = place.with_suffix(".log")
    with said.open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "nemo_vfm", *words], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=log, stderr=subprocess.STDOUT,
        )  # fmt: skip
        _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"nemo-vfm {' '.join(words)} ended with {process.returncode}:\n{said.read_text()[-2000:]}")
    peak = used.ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e6
    print(f"{len(list(films.iterdir())):6} films: {peak:7.1f} MB, {time.perf_counter() - began:.0f} s", flush=True)
    return peak


def measure(numbers: Sequence[int], recipe: str, folder: Path) -> dict[str, float]:
    """All figures; films are made as they are needed."""
    films, figures = folder / "films", {}
    films.mkdir()
    for number in sorted(numbers):
        for seed in range(len(list(films.iterdir())), number):
            write_film(films / f"{seed:06d}.mp4", pan(2 * seed), pan(2 * seed + 1))
        figures[f"peak_mb_{number}"] = peak_mb(films, recipe, folder / f"run-{number}")
    least, most = min(numbers), max(numbers)
    rise = figures[f"peak_mb_{most}"] - figures[f"peak_mb_{least}"]
    return figures | {"kb_per_film": 1000 * rise / max(1, most - least)}


def main() -> None:
    """Parse, measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--films", default="20,200", help="numbers with commas between them; default 20,200")
    parser.add_argument("--recipe", default="full_cpu", help="of recipes/curation; default full_cpu")
    parser.add_argument("--json", type=Path, help="where the figures go")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = measure([int(number) for number in args.films.split(",")], args.recipe, Path(folder))
    print(f"each more film adds {figures['kb_per_film']:.0f} kB")
    if args.json:
        args.json.write_text(json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()
