# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Tests the GPU benchmark on tiny CPU shapes: it needs torch alone, counts FLOPs rightly, survives out-of-memory."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from tests.support.repository import ROOT

CPU = torch.device("cpu")
ALONE = """
import runpy, sys
for name in ('numpy', 'safetensors', 'lightning', 'av', 'cv2', 'yaml', 'PIL', 'diffusers'):
    sys.modules[name] = None  # as if it were not installed
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name='__main__')
print('ours:', *sorted(name for name in sys.modules if name.startswith('nemo_vfm.')))
"""


@pytest.fixture(scope="module")
def gpu() -> ModuleType:
    """The file as a module."""
    spec = importlib.util.spec_from_file_location("benchmark_gpu", ROOT / "benchmarks" / "gpu.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["benchmark_gpu"] = module  # dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow  # a process that imports everything
def test_it_runs_with_torch_alone_and_loads_the_model_and_no_more(tmp_path: Path) -> None:
    words = ["benchmarks/gpu.py", "--device", "cpu", "--tokens", "32", "--rounds", "2", "--no-compile",
             "--peak-tflops", "0.05", "--json", str(tmp_path / "out.json")]  # fmt: skip
    done = subprocess.run([sys.executable, "-c", ALONE, *words], cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    ours = done.stdout.splitlines()[-1].split()[1:]
    assert {name.split(".")[1] for name in ours} <= {"core", "models", "parallel"}
    said = json.loads((tmp_path / "out.json").read_text())
    assert (said["peak_tflops"], said["peak_source"]) == (0.05, "as --peak-tflops said")
    assert [row["side"] for row in said["rows"]] == ["ours eager", "plain eager"]
    for row in said["rows"]:
        assert row["tokens"] == 32
        assert row["tokens_per_s"] == pytest.approx(32 / row["step_ms"] * 1e3)
        assert 0 < row["mfu"] < 1
        assert not row["failed"]


@pytest.mark.parametrize("name", ["ours eager", "plain eager"])
def test_the_formula_is_what_torch_counts_of_either_side(gpu: ModuleType, name: str) -> None:
    shape = gpu.Shape((4, 8, 8), 128, 2, 2, 16, 64)
    one = gpu.side(name, shape, CPU)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        one.forward().float().square().mean().backward()
    # Below: modulations, first and last linear, which the formula leaves out.
    assert 0.9 < shape.flops() / counter.get_total_flops() < 1.0


def test_both_sides_are_as_large(gpu: ModuleType) -> None:
    shape = gpu.Shape((2, 4, 4), 256, 2, 3, 16, 64)
    ours, plain = (
        sum(p.numel() for p in gpu.side(name, shape, CPU).model.blocks.parameters())
        for name in ("ours eager", "plain eager")
    )
    assert ours == pytest.approx(plain, rel=0.002)


def test_where_memory_is_full_fewer_blocks_are_tried(gpu: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    made, fits = gpu.side, 1

    def small(name: str, shape: Any, device: torch.device) -> Any:
        if shape.depth > fits:
            raise torch.OutOfMemoryError
        return made(name, shape, device)

    monkeypatch.setattr(gpu, "side", small)
    shapes = [gpu.Shape((2, 4, 4), 64, 2, depth, 8, 16) for depth in (3, 2, 1)]
    names = ("ours eager", "plain eager")
    assert [(row.depth, row.failed) for row in gpu.fitted(names, shapes, 1, None, CPU)] == [(1, "")] * 2
    fits = 0
    assert [row.failed for row in gpu.fitted(names, shapes, 1, None, CPU)] == ["out of memory"] * 2


def test_what_cannot_be_compiled_is_told_and_the_rest_goes_on(gpu: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def without(*_: object) -> None:
        raise RuntimeError("no C++ compiler\nlong story")

    monkeypatch.setattr(gpu, "pair", without)
    shapes = [gpu.Shape((2, 4, 4), 64, 2, 1, 8, 16)]
    assert [row.failed for row in gpu.fitted(("ours compiled", "plain compiled"), shapes, 1, None, CPU)] == [
        "no C++ compiler"
    ] * 2
    with pytest.raises(RuntimeError):
        gpu.fitted(("ours eager", "plain eager"), shapes, 1, None, CPU)


def test_a_peak_is_named_and_none_is_made_up(gpu: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    assert gpu.peak_of(CPU, None)[0] is None
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA H200")
    assert gpu.peak_of(torch.device("cuda"), None) == (
        989.4,
        "data sheet of H200, dense bf16; the device says NVIDIA H200",
    )
