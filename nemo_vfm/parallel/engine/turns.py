"""Says why the children of a model cannot be updated in turns, each by an optimizer of its own."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from torch import nn

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.precision import Precision
from nemo_vfm.core.types.task import TakesTurns, Task
from nemo_vfm.parallel.plan.plan import ParallelPlan
from nemo_vfm.parallel.plan.sharding_spec import Divisible, Optimizers
from nemo_vfm.sparse.tables.fused_tables import tables_of

if TYPE_CHECKING:
    from nemo_vfm.parallel.engine.step_runner import EngineInputs

_NAMED = 4  # parameters in a sentence


def require_turns(parts: "EngineInputs", model: nn.Module) -> None:
    """UserError with the first of `turn_objections`."""
    for _, why in turn_objections(model, parts.optimizer, parts.task, parts.plan, parts.precision):
        raise UserError(f"{why}.")


def turn_objections(
    model: nn.Module, optimizers: Optimizers, task: Task, plan: ParallelPlan, precision: Precision
) -> Iterator[tuple[str, str]]:
    """What several optimizers cannot do, each with the key of the recipe that says so; nothing of one optimizer."""
    if not isinstance(optimizers, Mapping):
        return
    yield from (("optimizer", why) for why in _wrong_children(model, list(optimizers)))
    if not isinstance(task, TakesTurns):
        yield "task", (f"several optimizers update in turns, but {type(task).__name__} has no method turn_losses(turn, "
                       f"output, prepared) that gives the losses of each; add it, or give one optimizer")  # fmt: skip
    if plan.world != plan.data:
        yield "parallel", (f"turns are taken by ranks that share the samples alone, but the plan is {plan}; use only "
                           "parallel.replicate and parallel.shard, or one optimizer")  # fmt: skip
    elif plan.world > 1 and isinstance(model, Divisible):
        # FSDP takes a block's dtypes from its trainable weights at the first step; a frozen block has none, and its
        # gradients would be summed in bf16 from then on (torch 2.13).
        yield "parallel", (f"{type(model).__name__} has a plan(), so its blocks are gathered one by one, which does "
                           "not go with turns; use one device, or one optimizer")  # fmt: skip
    if precision.fp8 is not None:
        yield "precision", ("FP8 keeps one history of magnitudes a step, but each turn runs the model; set "
                            "precision.fp8 to null, or one optimizer")  # fmt: skip
    if tables_of(model):
        yield "optimizer", ("embedding tables update their rows in each step by themselves and cannot be frozen for a "
                            "turn; give one optimizer")  # fmt: skip


def _wrong_children(model: nn.Module, names: list[str]) -> Iterator[str]:
    """Names that are no children with trainable parameters, and parameters that do not belong to exactly one."""
    children = dict(model.named_children())
    for name in names:
        if name not in children:
            yield (f"optimizer has {name}, but {type(model).__name__} has no such child; it has "
                   f"{', '.join(children) or 'none'}")  # fmt: skip
        elif not any(one.requires_grad for one in children[name].parameters()):
            yield f"optimizer has {name}, but no parameter of model.{name} is trainable; leave it out"
    owners: dict[nn.Parameter, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if parameter.requires_grad:
            owners.setdefault(parameter, []).append(name)
    parents = {places[0]: {place.partition(".")[0] for place in places} for places in owners.values()}
    without = [name for name, own in parents.items() if own.isdisjoint(names)]
    shared = [places for places in owners.values() if len(parents[places[0]]) > 1]
    if without:
        more = f" and {len(without) - _NAMED} more" if len(without) > _NAMED else ""
        yield (f"no optimizer updates {', '.join(without[:_NAMED])}{more}: optimizer has {', '.join(names)}; move them "
               f"into one of these children, freeze them, or name their child, too")  # fmt: skip
    if shared:
        yield (f"{' and '.join(shared[0])} are one parameter, which two optimizers would update; give each child "
               f"parameters of its own")  # fmt: skip
