"""Measures how long our background save stops the step loop, beside torch.save and fsync of the same state.

stall_ratio: the time for which a save stops the step loop, from the second save on (the first allocates its memory),
over that of torch.save and os.fsync, which stop it until the disk has everything. Both take turns; the median of the
rounds counts.
step_inflation: the mean time of a step while the writer works, over that of a step while it does not.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

import torch
from torch import Tensor

from nemo_vfm.core.storage.checkpoint_names import Keep
from nemo_vfm.parallel.checkpoint.checkpoint_saver import Saver
from nemo_vfm.parallel.checkpoint.checkpoint_writer import CheckpointInfo

MB = 1 << 20


def state(megabytes: int) -> dict[str, dict[str, Tensor]]:
    """Weights, their average and two moments, in matrices of 4 MB, and step counts."""
    count = max(1, megabytes // 16)
    names = [f"blocks.{number}.weight" for number in range(count)]
    made = {group: {name: torch.rand(1024, 1024) for name in names} for group in ("model", "ema")}
    moments = {f"{name}/{key}": torch.rand(1024, 1024) for name in names for key in ("exp_avg", "exp_avg_sq")}
    return {**made, "optimizer": moments | {f"{name}/step": torch.tensor(1.0) for name in names}}


def step(matrix: Tensor) -> None:
    """Some arithmetic, as a training step has it."""
    for _ in range(4):
        matrix = torch.tanh(matrix @ matrix)


def timed_steps(matrix: Tensor, count: int) -> list[float]:
    """Seconds of each of so many steps."""
    found = []
    for _ in range(count):
        begin = time.perf_counter()
        step(matrix)
        found.append(time.perf_counter() - begin)
    return found


def plain_save(tensors: dict[str, dict[str, Tensor]], path: Path) -> float:
    """Seconds that torch.save and fsync take."""
    begin = time.perf_counter()
    with path.open("wb") as file:
        torch.save(tensors, file)
        file.flush()
        os.fsync(file.fileno())
    return time.perf_counter() - begin


def stall(saver: Saver, tensors: dict[str, dict[str, Tensor]], number: int) -> float:
    """Seconds until our save gives the loop back."""
    begin = time.perf_counter()
    saver.save(number, tensors, {"step": number}, Keep(last=1), CheckpointInfo("benchmark"))
    return time.perf_counter() - begin


def written(folder: Path, number: int) -> bool:
    """Whether that step's checkpoint is whole."""
    return (folder / f"step-{number:08d}" / "manifest.json").is_file()


def measure(folder: Path, megabytes: int, rounds: int) -> dict[str, float]:
    """Both figures, over so many rounds."""
    tensors, matrix = state(megabytes), torch.rand(512, 512) / 512
    saver = Saver(folder / "ours")
    print(f"  first save, not counted: {stall(saver, tensors, 1):.3f} s")
    saver.finish()
    stalls, plain, busy, idle = [], [], [], []
    for number in range(2, rounds + 2):
        plain.append(plain_save(tensors, folder / "plain.pt"))
        os.sync()
        idle += timed_steps(matrix, 20)
        stalls.append(stall(saver, tensors, number))
        while not written(folder / "ours", number):
            busy += timed_steps(matrix, 1)
        saver.finish()
        print(f"  round {number - 1}: torch.save and fsync {plain[-1]:.3f} s, ours keeps the loop {stalls[-1]:.3f} s")
    ratios = [ours / theirs for ours, theirs in zip(stalls, plain, strict=True)]
    print(f"  step {statistics.mean(idle) * 1e3:.1f} ms, {statistics.mean(busy) * 1e3:.1f} ms while the writer works "
          f"({len(busy)} steps)")  # fmt: skip
    return {"stall_ratio": statistics.median(ratios), "step_inflation": statistics.mean(busy) / statistics.mean(idle)}


def main() -> None:
    """Measure and print; write JSON where asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="64 MB and 3 rounds, within 30 s")
    parser.add_argument("--json", type=Path, help="write {figure: number} here")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", type=Path, help="a folder on the disk to measure; by default the temporary one's")
    options = parser.parse_args()
    megabytes, rounds = (64, 3) if options.quick else (512, options.rounds)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {os.cpu_count()} cores, {megabytes} MB")
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        figures = measure(Path(folder), megabytes, rounds)
    for name, value in figures.items():
        print(f"{name} {value:.4f}")
    if options.json:
        options.json.write_text(json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()
