"""Writes the planner's layouts as a YAML ingredient, as command-line overrides, or as JSON."""

from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from typing import TYPE_CHECKING

from nemo_vfm.cli.planning.plan_request import PlanRequest
from nemo_vfm.config.emit import text_of
from nemo_vfm.parallel.engine.torch_engine import TorchEngine
from nemo_vfm.parallel.plan.plan import ParallelPlan
from nemo_vfm.perf.fp8_time import fp8_pays_from
from nemo_vfm.perf.layout_rules import RuleSize, judge_layout
from nemo_vfm.perf.planner import LayoutChoice, PlanResult, cost

if TYPE_CHECKING:
    from nemo_vfm.core.types.json_value import Json


_HEAD = "_target_: nemo_vfm.parallel.plan.plan.ParallelPlan"
_MFU_CONVENTION = "3 x forward FLOPs / seconds / dense bf16 peak, causal attention counted whole"


def ingredient_text(choice: LayoutChoice, comments: Sequence[str]) -> str:
    """`conf/parallel/NAME.yaml`, which begins with the comments, a line each."""
    recompute = ["# It needs engine.recompute: blocks."] if choice.recompute else []
    usual = {field.name: field.default for field in fields(ParallelPlan)}
    chosen = {name: getattr(choice.plan, name) for name in usual}
    if choice.plan.context == 1:
        chosen |= {"attention": usual["attention"]}
    values = [f"{name}: {text_of(value)}" for name, value in chosen.items() if value != usual[name]]
    return "".join(f"{line}\n" for line in [*(f"# {text}" for text in comments), *recompute, _HEAD, *values])


def overrides(choice: LayoutChoice, request: PlanRequest, *, offload: bool = False) -> list[str]:
    """Overrides (key=value) that turn the recipe's layout into `choice`; a mapping is merged into the recipe's.

    With `offload`, the optimizer's state goes to host memory, too.
    """
    plan, written = choice.plan, request.written
    if plan.context == 1:  # attention is unused at context 1; ulysses must divide context, so only 1 is valid
        plan = replace(plan, attention=written.attention, ulysses=1)
    if plan.pipeline == 1:
        plan = replace(plan, schedule=written.schedule)
    target = {field.name: getattr(plan, field.name) for field in fields(plan)}
    different = [f"{name}: {text_of(value)}" for name, value in target.items() if value != getattr(written, name)]
    of_plan = [f"{request.where}={{{', '.join(different)}}}"] if different else []
    engine = {"recompute": "blocks" if choice.recompute else "none"} if choice.recompute != request.recompute else {}
    engine |= {"offload_optimizer": "true"} if offload else {}
    if request.has_engine or not engine:
        return [*of_plan, *(f"{request.step}engine.{name}={value}" for name, value in engine.items())]
    # A recipe that names no engine must name one before it can set something of it.
    name_of_engine = f"{TorchEngine.__module__}.{TorchEngine.__qualname__}"
    inside = ", ".join(f"{name}: {value}" for name, value in {"_target_": name_of_engine, **engine}.items())
    return [*of_plan, f"{request.step}engine={{{inside}}}"]


def to_json(request: PlanRequest, answer: PlanResult, own: LayoutChoice | None) -> "Json":
    """The machine, the request, then the ranked, own and refused layouts."""
    question, machine = request.question, request.question.machine
    nodes = -(-answer.gpus // machine.network.gpus_per_node)
    fp8: Json = None
    if (spec := question.fp8) is not None:  # and from which width it is quicker with the tokens of one sample
        width = fp8_pays_from(machine.gpu, spec, question.subject.tokens)
        fp8 = {"recipe": spec.recipe, "first_bf16": spec.first_bf16, "last_bf16": spec.last_bf16,
               "pays_from_width": width, "width": question.work.width}  # fmt: skip
    return {
        "gpus": answer.gpus, "nodes": nodes, "gpus_per_node": min(answer.gpus, machine.network.gpus_per_node),
        "gpu": asdict(machine.gpu) | {"usable_bytes": round(machine.gpu.usable_bytes)},
        "network": asdict(machine.network),
        "model": {"name": type(question.subject.model).__name__, "parameters": question.work.parameters,
                  "forward_flops": question.work.flops, "tokens": question.subject.tokens},
        "sample": {"inputs": {name: list(shape) for name, shape in request.sample.inputs.items()},
                   "source": request.sample.source},
        "phase": request.phase or None, "batch": question.subject.batch, "steps": request.steps,
        "precision": question.arithmetic, "fp8": fp8,
        "mfu": _MFU_CONVENTION, "beside_bytes": dict(request.held.weights), "not_counted": dict(request.held.unknown),
        "checkpoint_bytes": request.checkpoint_bytes, "checkpoints_kept": request.kept,
        "ranked": [_choice(request, one) for one in answer.ranked],
        "own": None if own is None else _choice(request, own) | {"rank": answer.rank_of(own.family)},
        "refused": [{"about": one.about, "count": one.count, "values": list(one.values), "why": one.why}
                    for one in answer.groups()],
    }  # fmt: skip


def _choice(request: PlanRequest, choice: LayoutChoice) -> "Json":
    question = request.question
    rule_size = RuleSize(question.work.parameters, question.subject.tokens, question.machine.network.gpus_per_node)
    memory = choice.memory
    return {
        "parallel": asdict(choice.plan), "rows": choice.rows, "recompute": "blocks" if choice.recompute else "none",
        "memory_bytes": asdict(memory) | {"total": memory.total},
        "fits": question.fits(memory), "changes": overrides(choice, request),
        **asdict(cost(choice, question, request.steps)), "seconds": asdict(choice.time),
        "rules": {str(rule.number): follows for rule, follows in judge_layout(choice.plan, rule_size)},
    }  # fmt: skip
