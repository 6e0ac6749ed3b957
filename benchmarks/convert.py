"""Measures how fast a video model's folder is converted, both ways, and how much memory that takes.

    python benchmarks/convert.py [--quick] [--rounds N] [--json FILE]

A random Wan of about 1 GB in four files, as diffusers saves it, becomes ours and a folder of diffusers again, by the
functions that `nemo-vfm convert` calls. Beside it, in turns, safetensors loads the same files and saves them again.
Both flush what they wrote to the disk, and it is removed once it has been used. Each conversion is a process of its
own; the first round does not count. `speed_over_copy` is the median over rounds of (bytes per second of the conversion)
/ (of the copy), of the slower direction. `peak_over_largest_mb` is the largest growth of a converting process's memory,
mapped files included, less the largest tensor.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import torch

WIDTH, FILES = 1024, 4


def make(folder: Path, blocks: int) -> None:
    """The model."""
    import diffusers

    torch.manual_seed(0)
    model = diffusers.WanTransformer3DModel(
        num_attention_heads=8, attention_head_dim=128, text_dim=1024, ffn_dim=4 * WIDTH, num_layers=blocks
    )
    size = sum(tensor.nbytes for tensor in model.state_dict().values())
    model.save_pretrained(folder, max_shard_size=size // FILES + 16 * WIDTH**2)


def flushed(folder: Path) -> None:
    """Everything below on the disk."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())


def copy(source: Path, target: Path) -> None:
    """Load and save by safetensors."""
    from safetensors.torch import load_file, save_file

    target.mkdir()
    for path in source.glob("*.safetensors"):
        save_file(load_file(path), target / path.name)


def one(way: str, source: Path, target: Path) -> dict[str, float]:
    """Seconds of one way in this process, and by how much its memory grew."""
    from nemo_vfm.cli.conversion import video_model

    target.parent.mkdir(exist_ok=True)
    Path("/proc/self/clear_refs").write_text("5")  # a process begins with the peak of the one that started it
    peak = highest_mb()
    begin = time.perf_counter()
    if way == "copy":
        copy(source, target)
    else:
        target.mkdir()
        {"in": video_model.convert_in, "out": partial(video_model.convert_out, to="diffusers")}[way](source, target)
    flushed(target)
    seconds = time.perf_counter() - begin
    return {"seconds": seconds, "grown_mb": highest_mb() - peak}


def highest_mb() -> float:
    """The most memory this process has had, mapped files included."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) / 1024


def measured(way: str, source: Path, target: Path) -> dict[str, float]:
    """`one` in a process of its own."""
    command = [sys.executable, __file__, "--way", way, str(source), str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> int:
    """Print the numbers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="0.17 GB and one round, which counts")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--way", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.way:
        way, source, target = given.way
        print(json.dumps(one(way, Path(source), Path(target))))
        return 0
    with tempfile.TemporaryDirectory() as name:
        told = compare(Path(name), *((2, 1) if given.quick else (14, given.rounds)))
    print(json.dumps(told, indent=2))
    if given.json:
        given.json.write_text(json.dumps(told))
    return 0


def round_of(folder: Path) -> dict[str, dict[str, float]]:
    """Each way once."""
    theirs, copied, ours, back = (folder / name for name in ("theirs", "copied", "ours", "back"))
    found = {"copy": measured("copy", theirs, copied)}
    shutil.rmtree(copied)
    found["in"] = measured("in", theirs, ours)
    found["out"] = measured("out", ours, back)
    shutil.rmtree(ours)
    shutil.rmtree(back)
    return found


def compare(folder: Path, blocks: int, rounds: int) -> dict[str, object]:
    """All rounds."""
    import safetensors

    make(folder / "theirs", blocks)
    files = list((folder / "theirs").glob("*.safetensors"))
    seen: dict[str, list[dict[str, float]]] = {"copy": [], "in": [], "out": []}
    for number in range(rounds):
        found = round_of(folder)
        if number or rounds == 1:
            for way in found:
                seen[way].append(found[way])
    pairs = {way: zip(seen["copy"], seen[way], strict=True) for way in ("in", "out")}
    ratios = {way: statistics.median(base["seconds"] / own["seconds"] for base, own in pairs[way]) for way in pairs}
    largest = 4 * 6 * WIDTH**2 / 2**20  # the modulation that all blocks share
    return {
        "torch": torch.__version__, "safetensors": safetensors.__version__, "files": len(files),
        "gigabytes": sum(path.stat().st_size for path in files) / 1e9,
        "speed_over_copy": min(ratios.values()), "speed_over_copy_by_way": ratios,
        "copy_s": [one["seconds"] for one in seen["copy"]], "copy_grown_mb": max(o["grown_mb"] for o in seen["copy"]),
        "peak_over_largest_mb": max(o["grown_mb"] for way in ("in", "out") for o in seen[way]) - largest,
        "grown_mb": {way: max(o["grown_mb"] for o in seen[way]) for way in ("in", "out")},
    }  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main())
