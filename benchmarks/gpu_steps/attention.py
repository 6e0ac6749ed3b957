"""Measures attention on one GPU by backend of torch's `scaled_dot_product_attention`, forward and backward in bf16.

    python benchmarks/gpu_steps/attention.py [--json FILE] [--only WORDS] [--quick]

FLOPs of the forward are 4 B H S^2 D, half of it under a causal mask; forward and backward together 3.5 times that. The
last row has a product of 8192 x 8192 matrices and a copy of 2 GiB, the ceilings of the device.
"""

from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

import torch
from timing import DEVICE, Figures, kernel_ms, report_of
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

BACKENDS = {"as torch chooses": None, "cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION,
            "efficient": SDPBackend.EFFICIENT_ATTENTION, "math": SDPBackend.MATH}  # fmt: skip


@dataclass(frozen=True)
class Shape:
    """Of an attention; `groups` is its heads of keys and values."""

    name: str
    batch: int
    heads: int
    groups: int
    tokens: int
    size: int
    causal: bool

    def measurable(self, backend: str) -> bool:
        """Not where it takes minutes or all memory, and not heads in groups where the backend refuses them."""
        if backend == "math":
            return self.tokens <= 4096
        return backend != "efficient" or (self.tokens <= 10_000 and self.groups == self.heads)


SHAPES = [
    Shape("DiT, 33,792 tokens", 1, 32, 32, 33_792, 128, False),
    Shape("DiT, 8,192 tokens", 1, 32, 32, 8192, 128, False),
    Shape("GPT, 8,192 tokens, causal", 1, 32, 32, 8192, 128, True),
    Shape("nemotron4_1b, 4 x 4,096 tokens, causal", 4, 16, 8, 4096, 128, True),
    Shape("Wan 1.3B, 32,760 tokens", 1, 12, 12, 32_760, 128, False),
    Shape("small, 8 x 256 tokens, causal", 8, 8, 8, 256, 64, True),
]
QUICK = [Shape("tiny", 1, 4, 4, 64, 16, False), Shape("tiny, groups, causal", 1, 4, 2, 64, 16, True)]


def measure(shape: Shape, backend: SDPBackend | None) -> Figures:
    """Milliseconds and TFLOP/s."""
    q, k, v = (_random(shape, heads).requires_grad_() for heads in (shape.heads, shape.groups, shape.groups))
    gradient = _random(shape, shape.heads)

    def attend() -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=shape.causal, enable_gqa=shape.groups != shape.heads)

    with nullcontext() if backend is None else sdpa_kernel(backend):
        forward = kernel_ms(attend)
        output = attend()
        backward = kernel_ms(lambda: torch.autograd.grad(output, (q, k, v), gradient, retain_graph=True))
    flops = 4.0 * shape.batch * shape.heads * shape.tokens**2 * shape.size / (2 if shape.causal else 1)
    rates = {"forward_tflops": flops / forward / 1e9, "both_tflops": 3.5 * flops / (forward + backward) / 1e9}
    return {"forward_ms": round(forward, 3), "backward_ms": round(backward, 3),
            **{name: round(rate, 1) for name, rate in rates.items()}}  # fmt: skip


def _random(shape: Shape, heads: int) -> Tensor:
    """(B, H, S, D) as a projection leaves it: heads beside each other."""
    made = torch.randn(shape.batch, shape.tokens, heads, shape.size, device=DEVICE, dtype=torch.bfloat16)
    return made.transpose(1, 2)


def ceilings(quick: bool) -> Figures:
    """Of products and of memory."""
    side = 64 if quick else 8192
    a, b = (torch.randn(side, side, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))
    here = torch.zeros(2**10 if quick else 2**30, device=DEVICE, dtype=torch.bfloat16)
    there = torch.empty_like(here)
    product, copy = kernel_ms(lambda: a @ b), kernel_ms(lambda: there.copy_(here))
    return {
        "product_tflops": round(2 * side**3 / product / 1e9, 1),
        "copy_tb_s": round(2 * here.nbytes / copy / 1e9, 2),
    }


def main() -> None:
    """Each shape by each backend that takes it."""
    report = report_of(__doc__)
    for shape in QUICK if report.quick else SHAPES:
        for name, backend in BACKENDS.items():
            if shape.measurable(name):
                report.side(f"{shape.name}, {name}", partial(measure, shape, backend))
    report.side("ceilings", partial(ceilings, report.quick))


if __name__ == "__main__":
    main()
