# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""The one place outside `parallel/` that knows which device this process computes on."""

import torch


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

    return f"{platform.processor() or platform.machine()} CPU, {torch.get_num_threads()} threads"


def synchronize() -> None:
    """Wait until the device has finished, so that a clock read next is true."""
    if device().type == "cuda":
        torch.cuda.synchronize()


def has_fast_bf16() -> bool:
    """Whether bfloat16 matrix products have hardware here.

    On a CPU without AVX-512-BF16 or AMX they run some 100 times slower than float32
    (AVX2 EPYC, torch 2.13: 1 against 103 GFLOP/s), so `precision: auto` must not choose them.
    """
    if device().type == "cuda":
        return bool(torch.cuda.is_bf16_supported())
    capabilities = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))
