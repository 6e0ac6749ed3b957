"""Tells which device this process computes on; outside `parallel/` no other file knows it."""

import itertools
import os
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from nemo_vfm.core.errors import UserError


def device() -> torch.device:
    """The accelerator of this process if there is one, else the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def describe() -> str:
    """The device's name and, on a CPU, the number of threads, for logs and manifests."""
    if device().type == "cuda":
        return torch.cuda.get_device_name(device())
    import platform

    threads = torch.get_num_threads()
    return f"{platform.processor() or platform.machine()} CPU, {threads} {'thread' if threads == 1 else 'threads'}"


def synchronize() -> None:
    """Wait until the device has finished, so that a clock read next is true."""
    if device().type == "cuda":
        torch.cuda.synchronize()


class StepTimer:
    """Takes the time at marks: by events of a GPU, which wait for nothing, else by the clock."""

    def __init__(self) -> None:
        self._marks: list[float | torch.cuda.Event] = []

    def mark(self) -> None:
        """Take the time here, once all that was asked of the device before is done."""
        if device().type != "cuda":
            self._marks.append(time.perf_counter())
            return
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        self._marks.append(event)

    def seconds(self) -> list[float]:
        """Between each mark and the next; waits for the device."""
        synchronize()
        found = []
        for before, after in itertools.pairwise(self._marks):
            if isinstance(before, float) or isinstance(after, float):
                assert isinstance(before, float) and isinstance(after, float), "a process computes on one device"
                found.append(after - before)
            else:
                found.append(before.elapsed_time(after) / 1e3)
        return found


def forget_peak() -> None:
    """Let `peak_bytes` count from here."""
    if device().type == "cuda":
        torch.cuda.reset_peak_memory_stats()


def peak_bytes() -> int | None:
    """The most bytes of tensors on the GPU since `forget_peak`; None without one."""
    return int(torch.cuda.max_memory_allocated()) if device().type == "cuda" else None


def has_fast_bf16() -> bool:
    """Whether bfloat16 matrix products have hardware here.

    On a CPU without AVX-512-BF16 or AMX they run some 100 times slower than float32
    (AVX2 EPYC, torch 2.13: 1 against 103 GFLOP/s), so `precision: auto` must not choose them.
    NEMO_VFM_CPU_BF16=1 or 0 is the answer for a CPU: nodes whose processors differ compute alike, and so do tests.
    """
    if device().type == "cuda":
        return bool(torch.cuda.is_bf16_supported())
    if answer := os.environ.get("NEMO_VFM_CPU_BF16"):
        if answer not in ("0", "1"):
            raise UserError(f"NEMO_VFM_CPU_BF16 must be 1 if bf16 matmuls count as fast, otherwise 0, not {answer!r}")
        return answer == "1"
    capabilities = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU."""

    name: str
    memory_gb: float  #: all of its memory, in 10^9 bytes
    capability: tuple[int, int]  #: compute capability, (major, minor); 8-bit products need (8, 9)

    def __str__(self) -> str:
        return f"{self.name}, {self.memory_gb:.0f} GB, compute capability {self.capability[0]}.{self.capability[1]}"


def gpu_count() -> int:
    """How many GPUs this process sees; none of them is opened for it."""
    return torch.cuda.device_count()


def gpus() -> list[Gpu]:
    """Every GPU that this process sees."""
    found = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        found.append(Gpu(properties.name, properties.total_memory / 1e9, (properties.major, properties.minor)))
    return found


def gpu_versions() -> dict[str, str]:
    """The versions of the driver, of torch's CUDA and of NCCL, as far as they are there."""
    driver = Path("/proc/driver/nvidia/version")
    words = driver.read_text().split() if driver.is_file() else []
    number = next((word for word in words if word[:1].isdigit() and "." in word), None)
    has_nccl = torch.version.cuda is not None and torch.distributed.is_nccl_available()
    nccl = torch.cuda.nccl.version() if has_nccl else None  # type: ignore[no-untyped-call]
    known = {"driver": number, "CUDA": torch.version.cuda, "NCCL": nccl and ".".join(map(str, nccl))}
    return {name: version for name, version in known.items() if version}


def try_product() -> None:
    """A bfloat16 product on the device; RuntimeError where the driver and torch do not fit together."""
    ones = torch.ones(64, 64, device=device(), dtype=torch.bfloat16)
    if float((ones @ ones).float().sum()) != 64.0**3:
        raise RuntimeError("a matmul is wrong")


def memory_history(max_events: int) -> bool:
    """Keep so many of the last requests for the GPU's memory, with their stacks, 0 none any more; False without one."""
    if device().type != "cuda":
        return False
    if max_events:
        torch.cuda.memory._record_memory_history(max_entries=max_events)
    else:
        torch.cuda.memory._record_memory_history(enabled=None)
    return bool(max_events)


def memory_snapshot(path: Path) -> None:
    """Write a PyTorch CUDA memory snapshot, for PyTorch's own viewer."""
    unfinished = path.with_name(f".{path.name}.tmp")
    torch.cuda.memory._dump_snapshot(str(unfinished))  # type: ignore[no-untyped-call]
    unfinished.replace(path)
