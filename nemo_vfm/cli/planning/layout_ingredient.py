"""Writes a layout as an ingredient, and as changes of a command line."""

from collections.abc import Sequence
from dataclasses import fields, replace

from nemo_vfm.cli.planning.plan_request import PlanRequest
from nemo_vfm.config.emit import text_of
from nemo_vfm.parallel.engine.torch_engine import TorchEngine
from nemo_vfm.parallel.plan.plan import ParallelPlan
from nemo_vfm.perf.planner import Choice

_HEAD = "_target_: nemo_vfm.parallel.plan.plan.ParallelPlan"


def changed(plan: ParallelPlan) -> dict[str, int | str | bool]:
    """What of a layout is not the default."""
    usual = {field.name: field.default for field in fields(ParallelPlan)}
    values = {name: getattr(plan, name) for name in usual}
    if plan.context == 1:
        values |= {"attention": usual["attention"]}
    return {name: value for name, value in values.items() if value != usual[name]}


def ingredient_text(choice: Choice, comments: Sequence[str]) -> str:
    """`conf/parallel/NAME.yaml`.

    Args:
        comments: what it begins with, a line each.
    """
    wanted = ["# It needs engine.recompute: blocks."] if choice.recompute else []
    values = [f"{name}: {text_of(value)}" for name, value in changed(choice.plan).items()]
    return "".join(f"{line}\n" for line in [*(f"# {text}" for text in comments), *wanted, _HEAD, *values])


def changes(choice: Choice, request: PlanRequest, *, offload: bool = False) -> list[str]:
    """What to change of a recipe, as words of a command line; a mapping there is laid over what the recipe has.

    Args:
        offload: whether the optimizer's state goes to host memory, too.
    """
    plan, own = choice.plan, request.written
    if plan.context == 1:  # then it does not matter, and need not be changed
        plan = replace(plan, attention=own.attention, ulysses=1)
    if plan.pipeline == 1:
        plan = replace(plan, schedule=own.schedule)
    wanted = {field.name: getattr(plan, field.name) for field in fields(plan)}
    other = [f"{name}: {text_of(value)}" for name, value in wanted.items() if value != getattr(own, name)]
    return [*([f"{request.where}={{{', '.join(other)}}}"] if other else []), *_of_engine(choice, request, offload)]


def _of_engine(choice: Choice, request: PlanRequest, offload: bool) -> list[str]:
    """A recipe that names no engine must name one before it can set something of it."""
    wanted = {"recompute": "blocks" if choice.recompute else "none"} if choice.recompute != request.recompute else {}
    wanted |= {"offload_optimizer": "true"} if offload else {}
    if request.has_engine or not wanted:
        return [f"{request.step}engine.{name}={value}" for name, value in wanted.items()]
    target = f"{TorchEngine.__module__}.{TorchEngine.__qualname__}"
    inside = ", ".join(f"{name}: {value}" for name, value in {"_target_": target, **wanted}.items())
    return [f"{request.step}engine={{{inside}}}"]
