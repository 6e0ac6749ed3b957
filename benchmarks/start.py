"""Measures the time to the first output of `--help`, `list`, `show` and `check` of the largest recipe, and of `run`.

    python benchmarks/start.py [--quick] [--json FILE]

Each is a process of its own, started as a user starts it, with a warm file cache. The figure is the best of five (three
with `--quick`), since all but the best measure the machine's other work. Beside each stands the unavoidable part: a
Python that does nothing, and one that imports torch. check_over_import_torch is `check` of the quickstart over the
latter, the two run in turns. first_line_s is from the start of `run` of the quickstart to its first line; then the
process is ended.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
QUICKSTART = "recipes/quickstart.yaml"
#: Modules are kept compiled, as an installation keeps them; without, `check` compiles 250 of ours, 0.7 s.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
ENVIRONMENT["PYTHONPATH"] = str(ROOT)


def seconds(words: list[str], rounds: int) -> float:
    """The best wall time of a command; it must succeed."""
    best = float("inf")
    for _ in range(rounds + 1):  # the first fills the file cache and is the worst of all, so it does no harm
        began = time.perf_counter()
        done = subprocess.run([sys.executable, *words], cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True)
        best = min(best, time.perf_counter() - began)
        if done.returncode:
            raise SystemExit(f"{' '.join(words)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return best


def first_line_seconds(rounds: int) -> float:
    """The best time from the start of `run` to the first line that it says."""
    best = float("inf")
    for _ in range(rounds + 1):
        with tempfile.TemporaryDirectory() as folder:
            words = [sys.executable, "-m", "nemo_vfm", "run", QUICKSTART, f"run_dir={folder}/run"]
            began = time.perf_counter()
            with subprocess.Popen(words, cwd=ROOT, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True) as process:
                assert process.stderr is not None
                line = process.stderr.readline()
                best = min(best, time.perf_counter() - began)
                process.kill()
        if f"runs in {folder}/run" not in line:
            raise SystemExit(f"the first line of `run` is {line!r}, which says nothing of recipe and run folder")
    return best


def check_over_import_torch(rounds: int) -> float:
    """Best of `check` over best of `import torch`, in turns, so that a busy machine slows both alike."""
    pairs = [(seconds(["-m", "nemo_vfm", "check", QUICKSTART], 0), seconds(["-c", "import torch"], 0))
             for _ in range(rounds + 1)]  # fmt: skip
    checks, imports = zip(*pairs, strict=True)
    return min(checks) / min(imports)


def largest() -> tuple[str, int]:
    """The recipe whose composition has most lines, and how many."""
    from nemo_vfm.config import compose

    files = sorted((ROOT / "recipes").rglob("*.yaml"))
    lines = {str(file.relative_to(ROOT)): compose(file).to_yaml().count("\n") for file in files}
    return max(lines.items(), key=lambda item: item[1])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="three rounds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    arguments = parser.parse_args()
    rounds = 3 if arguments.quick else 5
    print(f"Python {platform.python_version()}, torch {version('torch')}, lightning {version('lightning')}, pydantic "
          f"{version('pydantic')}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}, best of {rounds}")  # fmt: skip
    recipe, lines = largest()
    words = {"help_s": ["--help"], "list_s": ["list"], "show_s": ["show", recipe], "check_s": ["check", recipe]}
    figures = {name: seconds(["-m", "nemo_vfm", *verb], rounds) for name, verb in words.items()}
    python_s, torch_s = seconds(["-c", "pass"], rounds), seconds(["-c", "import torch"], rounds)
    print(
        f"largest recipe: {recipe}, {lines} lines composed; python -c pass: {python_s:.3f}, import torch: {torch_s:.3f}"
    )
    for name, verb in words.items():
        print(f"{name:<7}  {figures[name]:.3f}  nemo-vfm {' '.join(verb)}")
    figures |= {"check_over_import_torch": check_over_import_torch(rounds), "first_line_s": first_line_seconds(rounds)}
    print(f"check of {QUICKSTART} over import torch: {figures['check_over_import_torch']:.2f}")
    print(f"first line of run {QUICKSTART}: {figures['first_line_s']:.3f} s")
    if arguments.json:
        arguments.json.write_text(json.dumps({name: round(value, 4) for name, value in figures.items()}) + "\n")


if __name__ == "__main__":
    main()
