"""Chooses environment variables for the kind of GPU, the layout and the trainer, each with its reason.

What suits one GPU and layout harms another: Megatron's tensor parallel wants one queue of work to the GPU, and FSDP
must not have it. So nobody writes a list by hand; `cluster.environment` has the last word, name by name.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_BLACKWELL = ("b200", "gb200", "b300", "gb300")
_GRACE = ("gb200", "gb300", "gh200")
#: More threads than this a process only waits for memory; a round number, not measured.
_MAX_THREADS = 16


@dataclass(frozen=True, slots=True)
class Setting:
    """One variable."""

    name: str  #: of the variable
    value: str  #: as text
    reason: str  #: why, in one line


def environment(
    *, gpu: str | None, degrees: Mapping[str, int], engine: str, gpus_per_node: int = 8, cpus_per_task: int = 8
) -> Iterator[Setting]:
    """The variables of a job.

    Args:
        gpu: by name, such as h100; None where there is none.
        degrees: devices on each axis of the layout, as `SlurmJob.degrees`.
        engine: `torch`, `megatron`, or empty where nothing is trained.
        gpus_per_node: GPUs that NVLink joins.
        cpus_per_task: cores of a process.
    """
    yield Setting("PYTHONUNBUFFERED", "1", "the log keeps the last lines of a killed process")
    yield Setting("PYTHONFAULTHANDLER", "1", "a crash in native code prints the Python stack")
    yield Setting("TOKENIZERS_PARALLELISM", "false", "forked data workers cannot use its threads")
    yield Setting("HF_HUB_OFFLINE", "1", "weights and tokenizers are local folders")
    if engine:
        threads = str(min(cpus_per_task, _MAX_THREADS))
        yield Setting("OMP_NUM_THREADS", threads, "of a process: else each takes all the node's cores")
    if gpu is not None:
        yield Setting("NCCL_DEBUG", "WARN", "NCCL says what it objects to, and nothing else")
        yield Setting("PYTORCH_ALLOC_CONF", "expandable_segments:True", "sizes change from step to step: fewer gaps")
    if gpu in _GRACE:
        yield Setting("NCCL_NET_GDR_C2C", "1", "network cards hang on Grace: its link to the GPU carries their traffic")
        yield Setting("NCCL_NET_GDR_LEVEL", "PHB", "... also where the path leads over Grace's PCIe bridge")
    if gpu is not None and engine:
        yield from _of_training(gpu, {"tensor": 1, "context": 1, "pipeline": 1, "shard": 1, "replicate": 1,
                                      "virtual": 1, **degrees}, engine, gpus_per_node)  # fmt: skip


def _of_training(gpu: str, degrees: Mapping[str, int], engine: str, gpus_per_node: int) -> Iterator[Setting]:
    tensor, context, shard, pipeline = (degrees[axis] for axis in ("tensor", "context", "shard", "pipeline"))
    queues = "CUDA_DEVICE_MAX_CONNECTIONS"  # images made for Megatron have 1, so it must be said where 1 is wrong
    if gpu in _BLACKWELL:
        yield Setting(queues, "32", "Blackwell sends and computes at once from queues of their own")
    elif engine == "torch" and shard * context > 1:
        yield Setting(queues, "8", "weights are gathered while a block computes: 1 queue would end that")
    elif engine == "megatron" and max(tensor, context) > 1:
        yield Setting(queues, "1", "one queue keeps each send before the products that Megatron overlaps it with")
    if pipeline > 1 and tensor * context * shard * degrees["replicate"] * pipeline > gpus_per_node:
        yield Setting("NCCL_P2P_NET_CHUNKSIZE", "2097152", "stages on several nodes: activations in pieces of 2 MiB")
    if engine == "megatron" and tensor > 1:
        yield Setting("NCCL_NVLS_ENABLE", "0", "NVLink SHARP takes GPU memory, and Megatron has none registered")
    if engine == "megatron" and degrees["virtual"] > 1:
        for way in ("FWD", "BWD"):
            yield Setting(
                f"NVTE_{way}_LAYERNORM_SM_MARGIN", "16", "norms leave cores to the sends of interleaved stages"
            )
