"""Computes utilisation, rates and the length of a training from a layout and its step time."""

from dataclasses import dataclass

from nemo_vfm.perf.planner import Choice, Question


@dataclass(frozen=True, slots=True)
class Cost:
    """What a layout costs, predicted.

    Args:
        step_s: seconds of a step.
        mfu: model FLOPs utilisation, 0 to 1: of forward and backward (`perf/flops.py`), causal attention counted
            whole, over the bf16 peak.
        tokens_per_s: of all GPUs.
        waits: share of the step that pipeline devices wait.
        exchanges: share of it that exchanges take beside the arithmetic.
        days: of the training, without stops; None where nobody knows how many steps it has.
        gpu_hours: of all GPUs in these days.
    """

    step_s: float
    mfu: float
    tokens_per_s: float
    waits: float
    exchanges: float
    days: float | None
    gpu_hours: float | None


def cost(choice: Choice, question: Question, steps: int | None) -> Cost:
    """Reckon one layout.

    Args:
        steps: of the training; None where they are not known.
    """
    time, gpus, batch = choice.time, choice.plan.world, question.subject.batch
    peak = question.machine.gpu.flops_per_s * gpus
    seconds = None if steps is None else steps * time.total
    return Cost(
        step_s=time.total, mfu=question.work.training_flops * batch / time.total / peak,
        tokens_per_s=batch * question.subject.tokens / time.total, waits=time.waits / time.total,
        exchanges=(time.tensor + time.context + time.weights + time.sends) / time.total,
        days=None if seconds is None else seconds / 86_400,
        gpu_hours=None if seconds is None else seconds * gpus / 3600,
    )  # fmt: skip
