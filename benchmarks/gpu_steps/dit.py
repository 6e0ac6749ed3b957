"""Tells how a step of benchmarks/gpu.py's DiT divides its time among kinds of kernels, in bf16 and in FP8.

    python benchmarks/gpu_steps/dit.py [--json FILE] [--only WORDS] [--quick]

8,192 tokens and 3 blocks, compiled. How fast the step is, and beside what: `python benchmarks/gpu.py`.
"""

import argparse
import importlib.util
import sys
from functools import partial
from types import ModuleType

from timing import DEVICE, ROOT, Figures, by_kind, report_of


def benchmark() -> ModuleType:
    """benchmarks/gpu.py, which has both sides."""
    spec = importlib.util.spec_from_file_location("benchmark_gpu", ROOT / "benchmarks/gpu.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


def measure(gpu: ModuleType, name: str, quick: bool) -> Figures:
    """A profile of a side's step."""
    given = argparse.Namespace(device=DEVICE.type, depth=1 if quick else 3)
    one = gpu.side(name, gpu.shapes_of(given, 32 if DEVICE.type == "cpu" else 8192)[0], DEVICE)
    for _ in range(2):
        gpu.step(one, DEVICE)
    return by_kind(lambda: gpu.step(one, DEVICE))


def main() -> None:
    """Both precisions."""
    report, gpu = report_of(__doc__), benchmark()
    for name in ("ours compiled", "ours current compiled"):
        report.side(name, partial(measure, gpu, name, report.quick))


if __name__ == "__main__":
    main()
