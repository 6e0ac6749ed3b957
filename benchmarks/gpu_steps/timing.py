"""Times calls on a device, with their peak memory and their time by kind of kernel, and keeps a report of rows.

A side that fails is a row that says why, and the next one is measured. The JSON file is written after each row: what a
run that is cut short has measured is there.
"""

import argparse
import gc
import json
import re
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # the checkout's own package, wherever this is called

from nemo_vfm.core.device import device, synchronize  # noqa: E402
from nemo_vfm.perf.gpu_specs import GPUS  # noqa: E402

DEVICE = device()
#: A kernel is of the first kind whose pattern its name contains. By the name alone, so the bounds are not sharp.
KINDS = {
    "copies and casts": r"memcpy|memset|_copy|copy_kernel|CatArray|cast|FillFunctor",
    "attention": r"flash|fmha|sdpa|attention|softmax_warp",
    "optimizer": r"multi_tensor|adam|foreach",
    "products": r"gemm|nvjet|cutlass|cublas|wgmma|xmma|splitK|gemv|scaled_mm",
    "loss": r"nll_loss|softmax|cross_entropy|exp_kernel|ExpOp|log_kernel",
}
#: Named ranges that the profiler lists among kernels.
_RANGES = re.compile(r"nccl:|Optimizer\.|ProfilerStep|Torch-Compiled|## |autograd::|aten::|.*\.step#")
Figures = dict[str, object]


@dataclass
class Report:
    """Rows of figures, printed and written as they come.

    Args:
        file: for the rows as JSON; None writes none.
        only: measure the sides whose names contain this.
        quick: tiny shapes, to see that it works.
        rows: what was measured.
    """

    file: Path | None = None
    only: str = ""
    quick: bool = False
    rows: list[Figures] = field(default_factory=list)

    def side(self, name: str, measure: Callable[[], Figures]) -> None:
        """Measure one side, with nothing of the sides before it in memory."""
        if self.only not in name:
            return
        cleared()
        torch.compiler.reset()
        try:
            found = measure()
        except Exception as error:  # an out-of-memory error is one
            found = {"failed": f"{type(error).__name__}: {str(error).partition(chr(10))[0][:300]}"}
        cleared()
        self.rows.append({"side": name, **found})
        print(f"{name}: {json.dumps(found)}", flush=True)
        if self.file:
            machine = torch.cuda.get_device_name() if DEVICE.type == "cuda" else "CPU"
            said = {"torch": torch.__version__, "device": machine, "quick": self.quick, "rows": self.rows}
            self.file.write_text(json.dumps(said, indent=1) + "\n")


def report_of(text: str | None) -> Report:
    """From the command line; `text` is the script's docstring."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    parser.add_argument("--only", default="", help="measure the sides whose names contain this")
    parser.add_argument(
        "--quick", action="store_true", help="tiny shapes, to see that it works; its numbers say nothing"
    )
    given = parser.parse_args()
    if DEVICE.type != "cuda" and not given.quick:
        parser.error("torch sees no GPU here; --quick tries the script with tiny shapes")
    if DEVICE.type != "cuda":
        torch.compiler.set_default_backend("aot_eager")  # the compiler for CPUs takes minutes
    print(f"torch {torch.__version__}, {DEVICE.type}", flush=True)
    return Report(given.json, given.only, given.quick)


def cleared() -> None:
    """Give unused memory back, and count its peak from here."""
    gc.collect()
    if DEVICE.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def timed(call: Callable[[], object], count: int, warm: int = 1) -> Figures:
    """Median, shortest and longest of `count` calls after `warm` others, the first of all, and the peak memory."""
    took = [_seconds(call) for _ in range(warm)]
    if DEVICE.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    took += [_seconds(call) for _ in range(count)]
    rounds = took[warm:]
    found = {"ms": 1e3 * statistics.median(rounds), "least_ms": 1e3 * min(rounds), "most_ms": 1e3 * max(rounds)}
    found["first_s"] = took[0]
    if DEVICE.type == "cuda":
        found["peak_gb"] = torch.cuda.max_memory_allocated() / 1e9
        found["reserved_gb"] = torch.cuda.max_memory_reserved() / 1e9
    return {name: round(value, 3) for name, value in found.items()}


def _seconds(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    synchronize()
    return time.perf_counter() - begin


def kernel_ms(call: Callable[[], object]) -> float:
    """Median milliseconds of a call without the time of launching it, on a GPU; on a CPU of the call."""
    if DEVICE.type != "cuda":
        return 1e3 * _seconds(call)
    from triton.testing import do_bench

    return float(do_bench(call, warmup=15, rep=60, return_mode="median"))


def mfu(flops: float, found: Figures) -> Figures:
    """Per cent of the GPU's bf16 peak by its data sheet, and where that is not known none."""
    name = torch.cuda.get_device_name() if DEVICE.type == "cuda" else "CPU"
    peak = next((gpu.flops_per_s for gpu in GPUS if gpu.words in name), None)
    milliseconds = found["ms"]
    assert isinstance(milliseconds, float)
    return {} if peak is None else {"mfu_pct": round(100 * flops / (milliseconds / 1e3) / peak, 2)}


def by_kind(call: Callable[[], object], steps: int = 3) -> Figures:
    """Milliseconds a step by kind of kernel, without any kernel, and in all under the profiler, and launches a step."""
    on_gpu = DEVICE.type == "cuda"
    synchronize()
    with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]) as seen:
        begin = time.perf_counter()
        for _ in range(steps):
            call()
        synchronize()
        wall_s = time.perf_counter() - begin
    assert seen.profiler is not None and seen.profiler.kineto_results is not None
    spans = [
        (event.start_ns(), event.start_ns() + event.duration_ns(), event.name())
        for event in seen.profiler.kineto_results.events()
        if ("cuda" in str(event.device_type()).lower()) == on_gpu and event.duration_ns() > 0
        and not (on_gpu and _RANGES.match(event.name()))
    ]  # fmt: skip
    kinds: dict[str, float] = defaultdict(float)
    busy_ns = last = 0
    for start, end, name in sorted(spans):
        kinds[_kind_of(name)] += (end - start) / 1e6 / steps
        busy_ns += max(0, end - max(start, last))
        last = max(last, end)
    kinds["nothing running"] = (1e3 * wall_s - busy_ns / 1e6) / steps
    shown = {kind: round(ms, 2) for kind, ms in sorted(kinds.items(), key=lambda one: -one[1])}
    return {"by_kind_ms": {**shown, "wall": round(1e3 * wall_s / steps, 2)}, "launches": round(len(spans) / steps)}


def _kind_of(name: str) -> str:
    found = (kind for kind, pattern in KINDS.items() if re.search(pattern, name, re.IGNORECASE))
    return next(found, "pointwise and norms")


def drawn(build: Callable[[], nn.Module]) -> nn.Module:
    """The model with random weights, drawn on the device: on the CPU that takes longer than all steps."""
    with torch.device("meta"):
        model = build()
    assert not list(model.buffers()), "their values would be lost"
    model.to_empty(device=DEVICE)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=0.02)
            elif name.endswith("bias"):
                parameter.zero_()
            else:
                parameter.copy_(_first_value(model, name, parameter))
    return model


def _first_value(model: nn.Module, name: str, parameter: Tensor) -> Tensor:
    """Of a norm's weight: zero where the norm adds 1 to it."""
    known = getattr(model, "initial_weight", None)
    return torch.ones(parameter.shape) if known is None else known(name, parameter.shape, 0)


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Of tensors that are made without one."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
