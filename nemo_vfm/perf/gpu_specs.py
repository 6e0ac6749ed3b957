"""Looks up a GPU's memory, peak and memory bandwidth by its name, and estimates what share of the peak products reach.

No other file makes assumptions about kernels.
"""

import difflib
from dataclasses import dataclass

from nemo_vfm.core.errors import UserError

#: Of the memory, what weights, activations, optimizer and cuBLAS's workspaces may fill: the CUDA context, NCCL's
#: buffers, other kernels' workspaces and gaps between allocations take the rest. A round number, and not measured.
USABLE = 0.92


@dataclass(frozen=True, slots=True)
class GpuSpec:
    """One kind of GPU."""

    name: str  #: what `--gpu` takes
    words: str  #: of the name that its driver tells, the part that tells it from others
    memory_gib: float  #: what the driver shows, in GiB
    bf16_tflops: float  #: dense bf16 products without sparsity, in 10^12 FLOPs a second
    memory_gb_per_s: float  #: between memory and cores, in 10^9 bytes a second
    #: dense FP8 products with sums in fp32; None where there are none, before compute capability 8.9
    fp8_tflops: float | None = None
    capability: tuple[int, int] = (9, 0)  #: compute capability, (major, minor)

    @property
    def usable_bytes(self) -> float:
        """What a training may fill."""
        return self.memory_gib * 2**30 * USABLE

    @property
    def workspaces(self) -> int:
        """Bytes that torch allocates for cuBLAS, one workspace a thread: a step's own thread and the backward's.

        torch's sizes where CUBLAS_WORKSPACE_CONFIG is not set: 32 MiB on Hopper and, in later versions, on Blackwell;
        `:4096:2:16:8` on older ones. cuBLASLt may take 1 MiB a thread besides.
        """
        return 2 * (32 * 2**20 if self.capability[0] >= 9 else (4096 * 2 + 16 * 8) * 2**10)

    @property
    def flops_per_s(self) -> float:
        return self.bf16_tflops * 1e12

    @property
    def bytes_per_s(self) -> float:
        return self.memory_gb_per_s * 1e9


#: NVIDIA's data sheets. Where one name's words stand in another's, the longer one comes first. They give FP8 with
#: sparsity, twice what is here; for the RTX 4090 the Ada white paper has it with sums in fp32.
GPUS = (
    GpuSpec("gb200", "GB200", 186, 2500.0, 8000, 5000.0, (10, 0)), GpuSpec("b200", "B200", 180, 2250.0, 8000, 4500.0,
    (10, 0)),
    GpuSpec("gh200", "GH200", 96, 989.4, 4000, 1978.9), GpuSpec("h200", "H200", 140, 989.4, 4800, 1978.9),
    GpuSpec("h100_pcie", "H100 PCIe", 80, 756.0, 2000, 1513.0), GpuSpec("h100_nvl", "H100 NVL", 94, 835.0, 3900,
    1670.5),
    GpuSpec("h100", "H100", 80, 989.4, 3350, 1978.9), GpuSpec("h800", "H800", 80, 989.4, 3350, 1978.9),
    GpuSpec("a100_40", "A100-SXM4-40GB", 40, 312.0, 1555, None, (8, 0)), GpuSpec("a100", "A100", 80, 312.0, 2039,
    None, (8, 0)),
    GpuSpec("a800", "A800", 80, 312.0, 2039, None, (8, 0)), GpuSpec("l40s", "L40S", 48, 362.05, 864, 733.0, (8, 9)),
    GpuSpec("l40", "L40", 48, 181.05, 864, 362.0, (8, 9)), GpuSpec("l4", "L4", 24, 121.0, 300, 242.5, (8, 9)),
    GpuSpec("rtx_4090", "RTX 4090", 24, 165.2, 1008, 330.3, (8, 9)),
)  # fmt: skip


def gpu_named(name: str) -> GpuSpec:
    """The GPU that `--gpu` names.

    Raises:
        UserError: there is none, with the nearest name.
    """
    known = {gpu.name: gpu for gpu in GPUS}
    wanted = name.lower().replace("-", "_").replace(" ", "_")
    if wanted in known:
        return known[wanted]
    close = difflib.get_close_matches(wanted, known, n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    raise UserError(f"no GPU called {name!r} is known here: there are {', '.join(sorted(known))}{hint}")


@dataclass(frozen=True, slots=True)
class PublishedConstants:
    """Constants that give published rows of trainings on H100 (the table: docs/how-to/training/planning.md).

    Those of FP8 are assumed, not fitted: docs/reference/performance.md has what they give beside published speed-ups.

    A product's share falls with its smallest side: `most` x side / (side + half). Attention likewise with its length.
    """

    max_linear: float = 0.68  #: share of the peak that large products reach through a training
    half_linear: float = 128.0  #: the side at which a product reaches half of that
    max_fp8: float = 0.6  #: share of the FP8 peak that large products in FP8 reach
    #: the side at which such a product reaches half of that: twice that of bf16, since its loads and its start take as
    #: long while its products take half
    half_fp8: float = 256.0
    max_attention: float = 0.5  #: the same of attention
    half_attention: float = 512.0  #: the number of keys at which attention reaches half of that
    #: times that what goes into and out of each linear is read and written by norms, modulations, activations and
    #: residuals, forward; backward is taken for twice as many
    passes: float = 1.5
    launch_s: float = 3e-4  #: seconds that starting the kernels of a block takes, at least

    def linear(self, rows: float, inputs: float, outputs: float) -> float:
        """The share of the peak of a product of (rows, inputs) and (inputs, outputs), forward and backward."""
        side = min(rows, inputs, outputs)
        return self.max_linear * side / (side + self.half_linear)

    def linear_fp8(self, rows: float, inputs: float, outputs: float) -> float:
        """The same of a product in FP8, as a share of the FP8 peak; casts apart."""
        side = min(rows, inputs, outputs)
        return self.max_fp8 * side / (side + self.half_fp8)

    def attention(self, length: float) -> float:
        """The share of the peak of attention to so many keys."""
        return self.max_attention * length / (length + self.half_attention)
