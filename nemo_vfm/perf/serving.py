"""Computes what serving a language model needs on each GPU, in FP8 and in bf16, and whether it fits.

Tensor parallelism splits all matrices over the GPUs of a machine, and a pipeline the blocks over machines. In FP8 every
parameter, embeddings too, and every cached key and value is one byte, as the Nemotron-4 340B report counts
(arXiv 2406.11704); scales are not counted.
"""

from dataclasses import dataclass
from typing import Literal

from nemo_vfm.core.errors import UserError
from nemo_vfm.perf.gpu_specs import GpuSpec
from nemo_vfm.perf.layouts import divisors
from nemo_vfm.perf.model_work import ModelWork
from nemo_vfm.perf.network import Network

ServingPrecision = Literal["fp8", "bf16"]
BYTES: dict[ServingPrecision, int] = {"fp8": 1, "bf16": 2}
_COMPUTE_BYTES = 2  # of activations, which are bf16 between the products
_MAX_GPUS = 4096


@dataclass(frozen=True, slots=True)
class ServingMemory:
    """What a GPU holds while a model is served, in bytes."""

    precision: ServingPrecision  #: of weights and cache
    gpus: int  #: that hold one copy of the model
    weights: float  #: on each
    cache: float  #: keys and values of all sequences, on each
    activations: float  #: of the prompt of one sequence in the widest layer

    @property
    def total(self) -> float:
        return self.weights + self.cache + self.activations


def plan_serving(
    work: ModelWork, gpus: int, network: Network, precision: ServingPrecision, *, sequences: int = 1
) -> ServingMemory:
    """What each of so many GPUs holds.

    Keys and values: 2 x blocks x heads of keys x width of a head x tokens x sequences. More tensor ranks than heads of
    keys each keep a whole head.

    Args:
        work: of the model on one sequence of the longest context.
        gpus: that share one copy.
        network: which says how many a machine has.
        precision: of weights and cache.
        sequences: that are served at once.

    Raises:
        UserError: it is no language model, or the GPUs are not whole machines that can divide it.
    """
    each = network.gpus_per_node
    if gpus < 1 or (gpus > each and gpus % each):
        raise UserError(f"a model is served by the GPUs of one machine or of whole machines of {each}; got {gpus}")
    tensor, stages = min(gpus, each), max(1, gpus // each)
    queries = round(work.heads / work.kv_share)
    if queries % tensor or stages > work.depth:
        raise UserError(
            f"{queries} heads and {work.depth} blocks cannot be divided over tensor {tensor} and pipeline {stages}; "
            f"give another --gpus"
        )
    if not any(one.causal for one in work.attentions):
        raise UserError(
            "--serve is for language models, which keep keys and values; this model has no causal attention"
        )
    heads = max(1.0, work.heads / tensor)
    cache = 2 * work.depth / stages * heads * work.head_dim * work.tokens * sequences * BYTES[precision]
    widest = max(one.outputs if one.split == "column" else one.inputs for one in work.products)
    activations = work.tokens * (2 * work.width + widest / tensor) * _COMPUTE_BYTES
    return ServingMemory(precision, gpus, work.parameters * BYTES[precision] / gpus, cache, activations)


def fits(needed: ServingMemory, gpu: GpuSpec) -> bool:
    """Whether the GPU has so much."""
    return needed.total <= gpu.usable_bytes


def fewest_gpus(
    work: ModelWork, gpu: GpuSpec, network: Network, precision: ServingPrecision, *, sequences: int = 1
) -> int | None:
    """The smallest number on which it fits, a divisor of a machine and then whole machines; None where none is."""
    each = network.gpus_per_node
    numbers: list[int] = [*divisors(each), *range(2 * each, _MAX_GPUS + 1, each)]
    for number in numbers:
        try:
            if fits(plan_serving(work, number, network, precision, sequences=sequences), gpu):
                return number
        except UserError:
            continue
    return None
