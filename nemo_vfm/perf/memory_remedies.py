"""Finds changes after which a training that does not fit into a GPU's memory does fit.

Every remedy is a layout whose memory was computed by the planner's own model, and fits.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import combinations, product

from nemo_vfm.perf.gpu_specs import GPUS, GpuSpec
from nemo_vfm.perf.layouts import Degrees, divisors
from nemo_vfm.perf.planner import LayoutChoice, Planner, PlanQuery, PlanResult

NARROW, OFFLOAD, NO_AVERAGE, GPU = "precision=bf16", "engine.offload_optimizer=true", "~callbacks.ema", "--gpu"
AGAIN, SMALLER = "engine.recompute=blocks", "parallel.microbatches"
_MAX_GPUS = 16_384


@dataclass(frozen=True, slots=True)
class Remedy:
    """Changes, and what comes of them."""

    settings: tuple[str, ...]  #: changes of the recipe beside its layout and recomputation
    choice: LayoutChoice  #: the layout after it, which fits
    gpu: str = ""  #: another kind of GPU, where that is part of it; else empty
    levers: frozenset[str] = frozenset()  #: what was changed, however it is written


def remedies(question: PlanQuery, start: LayoutChoice, answer: PlanResult) -> list[Remedy]:
    """Everything that helps alone, and pairs of changes of which neither does; the quickest step first.

    Where no pair helps, the smallest sets that do.

    Args:
        start: what does not fit.
        answer: of the planner, for the same GPUs.
    """
    found = _of_layout(question, start)
    # The quickest layout that fits; and of each degree the quickest where, besides data ranks, only it is another.
    kinds = "tensor", "pipeline", "context"
    changes = [
        (one, {name for name in kinds if getattr(start.plan, name) != getattr(one.plan, name)}) for one in answer.ranked
    ]
    others = answer.ranked[:1] + tuple(next((one for one, own in changes if own == {kind}), None) for kind in kinds)
    found += [Remedy((), one, levers=frozenset({f"layout {one.family}"})) for one in dict.fromkeys(others) if one]
    if not answer.ranked:  # a change of settings and another layout
        known = {one.levers for one in found}
        for setting in _settings(question):
            for gpu, changed in _with_changes(question, frozenset({setting})):
                if ranked := Planner(changed).answer(answer.gpus).ranked:
                    both = _as_remedy(ranked[0], frozenset({setting, "layout"}), gpu)
                    if not any(levers <= both.levers for levers in known):
                        found.append(both)
                    break
    apart = {(one.settings, one.gpu, one.choice): one for one in found}
    return sorted(apart.values(), key=lambda one: one.choice.time.total)


def smallest_number(planner: Planner, above: int) -> int | None:
    """The fewest GPUs above so many, in whole machines beyond the first, on which the training as it is would fit."""
    each = planner.question.machine.network.gpus_per_node
    # All that the model and its batch could allow, whatever the number of GPUs.
    subject, allowed = planner.question.subject, planner.allowed
    tensors = [n for n in divisors(allowed.heads) if not allowed.objection_to_tensor(n)]
    contexts = [n for n in divisors(subject.tokens) if n <= _MAX_GPUS]
    ways = product(tensors, contexts, range(1, allowed.depth + 1), divisors(subject.batch))
    degrees = [Degrees(pipeline, 1, data, context, tensor) for tensor, context, pipeline, data in ways
               if tensor * context * pipeline * data <= _MAX_GPUS]  # fmt: skip
    for at in sorted(degrees, key=lambda one: one.gpus):
        whole = at.gpus <= each or at.gpus % each == 0
        if at.gpus > above and whole and allowed.find_refusal(at) is None and planner.some_fits(at):
            return at.gpus
    return None


def _of_layout(question: PlanQuery, start: LayoutChoice) -> list[Remedy]:
    """Of changes that leave every degree as it is: all smallest sets of one or two, else the smallest ones."""
    levers = [*([SMALLER] if start.rows > 1 else []), *([] if start.recompute else [AGAIN]), *_settings(question)]
    found: list[Remedy] = []
    for count in range(1, len(levers) + 1):
        if count > 2 and found:
            break
        for changes in map(frozenset, combinations(levers, count)):
            if not any(one.levers <= changes for one in found) and (one := _remedy(question, start, changes)):
                found.append(one)
    return found


def _settings(question: PlanQuery) -> Iterator[str]:
    if question.precision == "fp32":
        yield NARROW
    if not question.offload:
        yield OFFLOAD
    if question.average:
        yield NO_AVERAGE
    if _larger_gpus(question):
        yield GPU


def _larger_gpus(question: PlanQuery) -> list[GpuSpec]:
    """The smallest first; for a training in FP8 those that have such products."""
    least = question.machine.gpu.memory_gib
    fitting = (gpu for gpu in GPUS if question.fp8 is None or gpu.fp8_tflops is not None)
    return sorted((gpu for gpu in fitting if gpu.memory_gib > least), key=lambda gpu: gpu.memory_gib)


def _remedy(question: PlanQuery, start: LayoutChoice, changes: frozenset[str]) -> Remedy | None:
    """These changes of this layout, if it fits then."""
    plans, own = [start.plan], question.subject.batch // start.plan.data
    if SMALLER in changes:  # the same in more microbatches
        plans = []
        for rows in divisors(start.rows)[:-1]:
            with suppress(ValueError):  # where they do not make equal rounds over virtual stages
                plans.append(replace(start.plan, microbatches=own // rows))
    for gpu, changed in _with_changes(question, changes):
        planner = Planner(changed)
        made = [planner.choice(plan, recompute=start.recompute or AGAIN in changes) for plan in plans]
        fitting = [one for one in made if changed.fits(one.memory)]
        if fitting:
            return _as_remedy(min(fitting, key=lambda one: one.time.total), changes, gpu)
    return None


def _as_remedy(choice: LayoutChoice, changes: frozenset[str], gpu: str) -> Remedy:
    settings = tuple(name for name in (NARROW, OFFLOAD, NO_AVERAGE) if name in changes)
    return Remedy(settings, choice, gpu, changes)


def _with_changes(question: PlanQuery, changes: frozenset[str]) -> Iterator[tuple[str, PlanQuery]]:
    """The question after changes of settings; of larger GPUs one after another."""
    changed = replace(
        question, precision="bf16" if NARROW in changes else question.precision,
        offload=question.offload or OFFLOAD in changes, average=question.average and NO_AVERAGE not in changes,
    )  # fmt: skip
    if GPU not in changes:
        yield "", changed
        return
    for gpu in _larger_gpus(question):
        yield gpu.name, replace(changed, machine=replace(question.machine, gpu=gpu))
