"""Tests the GPU benchmark on tiny CPU shapes: it needs torch alone, counts FLOPs rightly, survives out-of-memory."""

import json
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from nemo_vfm.parallel.fp8.fp8_linear import Fp8Linear
from tests.support.benchmarks import module_of
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
    return module_of("gpu")


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
    sides = [row["side"] for row in said["rows"]]
    assert sides == ["ours eager", "plain eager", "ours current eager", "ours eager", "te eager"]
    assert said["fp8_emulated"] and "FP8 is emulated on this cpu device" in done.stdout
    assert said["rows"][-1]["failed"] == "Transformer Engine is not installed"
    assert said["speedups"]["32 tokens: ours current eager over ours eager"] > 0
    for row in said["rows"][:-1]:
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


def test_the_fp8_side_computes_its_large_linears_in_fp8_and_no_other_side_does(gpu: ModuleType) -> None:
    shape = gpu.Shape((2, 4, 4), 64, 4, 2, 8, 32)
    quick, wide = (gpu.side(f"ours{kind} eager", shape, CPU) for kind in (" current", ""))
    named = {kind: [name for name, one in side.model.named_modules() if isinstance(one, Fp8Linear)]
             for kind, side in (("fp8", quick), ("bf16", wide))}  # fmt: skip
    assert len(named["fp8"]) == 7 * 2 and not named["bf16"]
    difference = (quick.forward() - wide.forward()).norm() / wide.forward().norm()
    assert 1e-4 < difference < 0.2


def test_transformer_engines_linears_take_the_place_of_those_over_tokens(
    gpu: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[int, int]] = []

    class Linear(torch.nn.Linear):
        def __init__(self, inputs: int, outputs: int, *, bias: bool, params_dtype: torch.dtype) -> None:
            super().__init__(inputs, outputs, bias, dtype=params_dtype)
            made.append((inputs, outputs))

    te, recipe = ModuleType("transformer_engine.pytorch"), ModuleType("transformer_engine.common.recipe")
    te.Linear, te.autocast, recipe.Float8CurrentScaling = Linear, lambda **_: nullcontext(), object  # type: ignore[attr-defined]
    package, common = ModuleType("transformer_engine"), ModuleType("transformer_engine.common")
    package.pytorch = te  # type: ignore[attr-defined]
    for module in (package, te, common, recipe):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    one = gpu.side("te eager", gpu.Shape((2, 4, 4), 64, 4, 1, 8, 32), CPU)
    assert sorted(made) == [(32, 128), (64, 64), (64, 64), (64, 64), (64, 192), (64, 256), (256, 64)]
    assert gpu.step(one, CPU) > 0


def test_a_speedup_is_of_two_sides_that_ran(gpu: ModuleType) -> None:
    quick, slow = (gpu.Row(32, 2, side, tokens_per_s=rate) for side, rate in (("a", 30.0), ("b", 20.0)))
    assert gpu.speedup([quick, slow]) == {"32 tokens: a over b": 1.5}
    assert gpu.speedup([quick, gpu.Row(32, 2, "b", failed="out of memory")]) == gpu.speedup([quick]) == {}


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
