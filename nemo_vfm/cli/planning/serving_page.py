"""Says on which GPUs a recipe's language model can be served, in FP8 and in bf16, and why or why not."""

from dataclasses import asdict
from typing import TYPE_CHECKING

from nemo_vfm.cli.planning.layout_words import digits, gib, large
from nemo_vfm.core.errors import UserError
from nemo_vfm.perf.planner import Question
from nemo_vfm.perf.serving import BYTES, Serving, ServingPrecision, fewest_gpus, fits, serving

if TYPE_CHECKING:
    from nemo_vfm.core.types.json_value import Json


def answers(question: Question, gpus: int, sequences: int) -> dict[ServingPrecision, Serving | None]:
    """What each GPU would hold; None in FP8 on GPUs that have no such products.

    Raises:
        UserError: see `serving`.
    """
    work, network = question.work, question.machine.network
    if sequences < 1:
        raise UserError(f"--sequences must be at least 1, got {sequences}")
    return {
        name: None if name == "fp8" and question.machine.gpu.fp8_tflops is None else
        serving(work, gpus, network, name, sequences=sequences)
        for name in BYTES
    }  # fmt: skip


def sentences(question: Question, gpus: int, sequences: int) -> list[str]:
    """The page: what is served, then a sentence for each precision."""
    work, gpu = question.work, question.machine.gpu
    head = (
        f"Serving {type(question.subject.model).__name__} of {large(work.parameters)} parameters on {gpus:,} "
        f"{gpu.name}, of which each has {gib(gpu.usable_bytes)} GiB ({digits(gpu.usable_bytes / 1e9)} GB) to fill: "
        f"{sequences:,} x {work.tokens:,} tokens at once. Predicted, not measured."
    )
    found = answers(question, gpus, sequences)
    return [head, *(_sentence(question, name, one, sequences) for name, one in found.items())]


def _sentence(question: Question, name: ServingPrecision, needed: Serving | None, sequences: int) -> str:
    gpu, network = question.machine.gpu, question.machine.network
    if needed is None:
        return f"{name}: {gpu.name} has no FP8 matmuls, which need compute capability 8.9."
    parts = (
        f"weights {_gb(needed.weights)}, keys and values {_gb(needed.cache)}, activations {_gb(needed.activations)}, "
        f"together {_gb(needed.total)} a GPU"
    )
    if fits(needed, gpu):
        return f"{name}: it fits: {parts}."
    alone = "; the weights alone exceed it" if needed.weights > gpu.usable_bytes else ""
    more = fewest_gpus(question.work, gpu, network, name, sequences=sequences)
    would = f"it would fit on {more:,} {gpu.name}" if more else "it would fit on no number of them"
    return f"{name}: it does not fit: {parts}{alone}; {would}."


def _gb(num_bytes: float) -> str:
    return f"{num_bytes / 1e9:.1f} GB"


def to_json(question: Question, gpus: int, sequences: int) -> "Json":
    """The same for machines."""
    gpu = question.machine.gpu
    found = answers(question, gpus, sequences)
    return {
        "gpus": gpus, "gpu": asdict(gpu) | {"usable_bytes": round(gpu.usable_bytes)}, "sequences": sequences,
        "tokens": question.work.tokens, "parameters": question.work.parameters,
        "serving": {name: None if one is None else asdict(one) | {"total": one.total, "fits": fits(one, gpu)}
                    for name, one in found.items()},
    }  # fmt: skip
