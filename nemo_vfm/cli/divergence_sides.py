"""Runs the same tiny training for two sides of a comparison, and reports where their numbers diverge."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from nemo_vfm.cli.recipe_job import tiny_training
from nemo_vfm.core.errors import UserError
from nemo_vfm.parallel.apply.apply_parallelism import require_divisible
from nemo_vfm.parallel.plan.plan import ParallelPlan
from nemo_vfm.parallel.plan.sharding_spec import Divisible
from nemo_vfm.parallel.verify.activation_recorder import steps
from nemo_vfm.parallel.verify.divergence import DivergenceReport, Side, compare
from nemo_vfm.parallel.verify.parity import silence_warnings
from nemo_vfm.parallel.verify.rank_pool import Pool, RankFailed
from nemo_vfm.parallel.verify.tiny_training import SAMPLES, TinyTraining

#: Small models; FP8 on several ranks may round an element the other way, and layers after it follow.
_TOLERANCE = {"fp32": 1e-4, "bf16": 5e-2, "fp8": 3e-1}


@dataclass(frozen=True, slots=True)
class SideRequest:
    """A side that is asked for."""

    words: str  #: as the user said it
    ready: TinyTraining  #: what is run
    plan: ParallelPlan  #: on which ranks

    def __str__(self) -> str:
        compute = str(self.ready.precision.resolve()[0]).removeprefix("torch.")
        how = self.plan.schedule or self.plan.attention if self.plan.pipeline * self.plan.context > 1 else ""
        fp8 = f" with FP8 ({spec.recipe})" if (spec := self.ready.precision.fp8) else ""
        return f"{self.words}: {self.plan}{f' ({how})' if how else ''}, {compute}{fp8}"


@dataclass(frozen=True, slots=True)
class DivergenceRequest:
    """Both sides."""

    a: SideRequest
    b: SideRequest
    heads: int  #: attention heads of A's model
    tolerance: float  #: relative


def parse_request(arguments: argparse.Namespace) -> DivergenceRequest:
    """The sides that the command line names."""
    recipes = [word for word in arguments.recipes if "=" not in word and not word.startswith("~")]
    changes = [word for word in arguments.recipes if word not in recipes]
    if not 1 <= len(recipes) <= 2:
        raise UserError(f"one recipe or two can be compared, got {len(recipes)}: {', '.join(recipes)}")
    a, heads = _side_request(arguments, recipes[0], [*changes, *arguments.a])
    b, _ = _side_request(arguments, recipes[-1], [*changes, *arguments.b])
    if a.ready.shapes != b.ready.shapes:
        raise UserError(f"the sides take samples of different shapes, {a.ready.shapes} and {b.ready.shapes}")
    tolerance = max(_TOLERANCE[one.ready.precision.narrowest()] for one in (a, b))
    return DivergenceRequest(a, b, heads, arguments.tolerance or tolerance)


def _side_request(arguments: argparse.Namespace, recipe: str, changes: Sequence[str]) -> tuple[SideRequest, int]:
    mine = argparse.Namespace(**{**vars(arguments), "recipe": recipe, "overrides": [*changes]})
    ready, model, job = tiny_training(mine)
    plan = job.parallel
    if plan.world > SAMPLES or SAMPLES % (plan.data * plan.microbatches):
        raise UserError(
            f"{recipe} needs {plan.world} devices ({plan}, microbatches {plan.microbatches}), but {SAMPLES} samples "
            f"are tried here on at most {SAMPLES}; give smaller degrees, such as --a parallel.shard=2"
        )
    require_divisible(model, plan)
    heads = model.plan().heads if isinstance(model, Divisible) else 1
    return SideRequest(" ".join([recipe, *changes]), replace(ready, precision=job.precision), plan), heads


def compare_sides(sides: DivergenceRequest, count: int) -> DivergenceReport:
    """Run both, and one device under A, for so many steps."""
    with Pool(max(sides.a.plan.world, sides.b.plan.world), silence_warnings) as pool:
        a = Side("A", sides.a.plan, _run(pool, sides.a, count))
        b = Side("B", sides.b.plan, _run(pool, sides.b, count))
        alone = pool.call(1, steps, sides.a.ready.by_torch(), {}, count)[0]
    return compare(alone, a, b, heads=sides.heads, tolerance=sides.tolerance)


def _run(pool: Pool, side: SideRequest, count: int) -> list[Any]:
    degrees = {name: getattr(side.plan, name) for name in ParallelPlan.__dataclass_fields__}
    try:
        return pool.call(side.plan.world, steps, side.ready, degrees, count)
    except RankFailed as error:
        raise UserError(f"{side} cannot be run: {error.first_cause()}") from error
