"""Measures what the quickstart's model has learnt, over seeds: colours, shapes, directions, seams, training time.

    python benchmarks/quickstart.py [--quick] [--seeds 0 1 2] [--json FILE] [key=value ...]

Each seed is a run of recipes/quickstart.yaml in a folder of its own: videos, model and noise are of that seed.
Accuracies are of 16 combinations that were never shown, read from the samples' pixels; a guess is right in a quarter.
seam_ratio is the mean jump across the codec's 8-pixel blocks over the mean jump elsewhere. The figures are means over
the seeds.
With `--quick` one seed is trained for a few steps, which shows only that the benchmark works.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MEASURED = ("shape_accuracy", "colour_accuracy", "direction_accuracy", "seam_ratio")


def figures_of(seed: int, changes: list[str], run_dir: Path) -> dict[str, float]:
    """One run to its end, and what it measured."""
    words = ["-m", "nemo_vfm", "run", "recipes/quickstart.yaml", f"run_dir={run_dir}", f"seed={seed}", *changes]
    done = subprocess.run([sys.executable, *words], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
                          capture_output=True, text=True)  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{' '.join(words)} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    evaluation = json.loads((run_dir / "evaluate/evaluation.json").read_text())
    training = json.loads((run_dir / "train/done.json").read_text())
    return {name: evaluation[name] for name in MEASURED} | {"training_s": training["figures"]["training_s"]}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one seed, a few steps")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    arguments, changes = parser.parse_known_args()
    quick = ["--overlay", "smoke"] if arguments.quick else []
    seeds = arguments.seeds[:1] if arguments.quick else arguments.seeds
    print(f"Python {platform.python_version()}, torch {version('torch')}, {os.cpu_count()} CPUs, "
          f"load {os.getloadavg()[0]:.1f}, seeds {' '.join(map(str, seeds))}")  # fmt: skip
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in seeds:
            rows.append(figures_of(seed, [*quick, *changes], Path(folder) / f"seed-{seed}"))
            print(f"seed {seed}: " + ", ".join(f"{name} {value:.3f}" for name, value in rows[-1].items()), flush=True)
    means = {name: round(sum(row[name] for row in rows) / len(rows), 4) for name in rows[0]}
    print("mean:   " + ", ".join(f"{name} {value:.3f}" for name, value in means.items()))
    if arguments.json:
        arguments.json.write_text(json.dumps(means) + "\n")


if __name__ == "__main__":
    main()
