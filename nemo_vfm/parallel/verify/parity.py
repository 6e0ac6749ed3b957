"""Measures how far each layout's losses and gradients are from those of one device.

Two steps are taken, or more. The first shows the gradients; the loss of the second shows that the update was the same.
Every rank computes one device's numbers for itself and compares what it holds: no parameter is gathered.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.types.batch import Batch
from nemo_vfm.parallel.apply.local_shard import full_tensor
from nemo_vfm.parallel.engine import weight_updater
from nemo_vfm.parallel.engine.step_runner import StepRunner
from nemo_vfm.parallel.plan.layout_cases import LayoutCase
from nemo_vfm.parallel.plan.plan import ParallelPlan
from nemo_vfm.parallel.plan.sharding_spec import Divisible
from nemo_vfm.parallel.ranks.process_group import all_reduce_max
from nemo_vfm.parallel.verify.rank_pool import Pool, RankFailed
from nemo_vfm.parallel.verify.tiny_training import TinyTraining

LOSS, GRADIENT = 1e-5, 1e-4  #: differences that rounding makes (fp32), relative; measured ones stay below a tenth
_STEPS = 2
NOT_PACKED = "this model takes no packed samples"
_NORM = "the norm of all"
_NOTHING = 1e-6  # of the norm of all gradients: a smaller one is compared with this, since it is rounding itself
_ALONE: dict[tuple[str, bool, int, int], "_RunFigures"] = {}

Verdict = Literal["equal", "differs", "refused", "failed", "seen", "not seen"]


@dataclass(frozen=True, slots=True)
class ParityRow:
    """What came of one layout.

    Args:
        layout: see there; the control's has a sum left out.
        ranks: processes.
        verdict: seen and not seen are the control's.
        loss: the largest relative difference of a step's loss; None where nothing was measured.
        gradient: the largest relative difference of a parameter's gradient, as L2 norms.
        parameter: whose.
        reason: why it was refused or failed.
        left_out: what the control does not do; empty else.
    """

    layout: LayoutCase
    ranks: int
    verdict: Verdict
    loss: float | None = None
    gradient: float | None = None
    parameter: str = ""
    reason: str = ""
    left_out: str = ""

    @property
    def is_good(self) -> bool:
        """Whether it is as it should be; a layout that the model cannot take is."""
        return self.verdict in ("equal", "refused", "seen")


@dataclass(frozen=True, slots=True)
class _RunFigures:
    """Of one run: the loss of each step, the norm of all gradients, and those of the first step by name."""

    losses: list[float]
    norm: float
    gradients: dict[str, Tensor]


def silence_warnings(_: int) -> None:
    """What libraries warn of on each rank is not about layouts."""
    import logging
    import warnings

    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)


def one_device(pool: Pool, rehearsal: TinyTraining, ranks: int) -> tuple[list[float], float]:
    """What one device says: the loss of each step, and the first one's gradient norm.

    Every process computes it before any waits for another: the first step of a process takes longest.
    """
    found: list[tuple[list[float], float]] = pool.call(ranks, _loss_and_norm, rehearsal)
    return found[0]


def _loss_and_norm(rank: int, rehearsal: TinyTraining) -> tuple[list[float], float]:
    with rehearsal.in_float64():
        alone = _one_device(rehearsal, LayoutCase({}))
    return alone.losses, alone.norm


def row(pool: Pool, rehearsal: TinyTraining, layout: LayoutCase, steps: int = _STEPS) -> ParityRow:
    """Measure one layout by so many steps."""
    ranks = layout.plan().world
    try:
        found = pool.call(ranks, differences, rehearsal, layout, steps)
    except RankFailed as error:
        return ParityRow(layout, ranks, "failed", reason=error.first_cause())
    if refusals := [one for one in found if isinstance(one, str)]:
        verdict: Verdict = "refused" if len(refusals) == ranks else "failed"
        return ParityRow(layout, ranks, verdict, reason=refusals[0])
    return _judge(ParityRow(layout, ranks, "equal"), found)


def control(pool: Pool, rehearsal: TinyTraining, ranks: int, *, is_cut: bool) -> ParityRow:
    """The same with a sum left out on purpose: a table that does not see it proves nothing.

    Args:
        ranks: at least 2.
        is_cut: whether the model can be split; if not, the control gives all ranks the first one's samples.
    """
    layout = LayoutCase({"tensor": ranks, "sequence": True} if is_cut else {"replicate": ranks})
    left_out = "without the sum of gradients over tensor ranks" if is_cut else "every rank with rank 0's samples"
    blank = ParityRow(layout, ranks, "seen", left_out=left_out)
    try:
        found = pool.call(ranks, without_a_sum if is_cut else compare_same_batch, rehearsal, layout)
    except RankFailed as error:
        return replace(blank, verdict="failed", reason=error.first_cause())
    if refused := next((one for one in found if isinstance(one, str)), None):
        return replace(blank, verdict="failed", reason=refused)
    measured = _judge(blank, found)
    return replace(measured, verdict="seen" if measured.verdict == "differs" else "not seen")


def _judge(blank: ParityRow, found: Sequence["tuple[float, dict[str, float]]"]) -> ParityRow:
    by_name = {name: max(by[name] for _, by in found if name in by) for _, names in found for name in names}
    parameter = max(by_name, key=lambda name: by_name[name])
    loss = max(loss for loss, _ in found)
    is_equal = loss <= LOSS and by_name[parameter] <= GRADIENT
    return replace(
        blank, verdict="equal" if is_equal else "differs", loss=loss, gradient=by_name[parameter], parameter=parameter
    )


def differences(
    rank: int, rehearsal: TinyTraining, layout: LayoutCase, steps: int = _STEPS
) -> tuple[float, dict[str, float]] | str:  # fmt: skip
    """On one rank: how far its losses are from one device's, and each gradient; or why the layout is refused."""
    with rehearsal.in_float64():
        try:
            batches = _rank_batches(rehearsal, layout, rank, steps)
            found = _run_steps(rehearsal.start(layout.plan()), batches)
        except (UserError, ValueError) as error:
            return str(error)
        return _compare(found, _one_device(rehearsal, layout, steps))


def without_a_sum(rank: int, rehearsal: TinyTraining, layout: LayoutCase) -> tuple[float, dict[str, float]] | str:
    """`differences` where what FSDP does not add up is not added up at all."""
    kept, weight_updater.all_reduce = weight_updater.all_reduce, lambda tensors, group: None
    try:
        return differences(rank, rehearsal, layout)
    finally:
        weight_updater.all_reduce = kept


def compare_same_batch(rank: int, rehearsal: TinyTraining, layout: LayoutCase) -> tuple[float, dict[str, float]] | str:
    """`differences` where every rank is given rank 0's samples."""
    with rehearsal.in_float64():
        found = _run_steps(rehearsal.start(layout.plan()), _rank_batches(rehearsal, layout, 0))
        return _compare(found, _one_device(rehearsal, layout))


def _run_steps(runner: StepRunner, batches: Sequence[Sequence[Batch]]) -> _RunFigures:
    """Take a step on each; one or more batches make a step."""
    first = runner.step(batches[0])
    kept = {name: full_tensor(one).clone() for name, one in runner.weights.gradients().items()}
    return _RunFigures([first.loss, *(runner.step(one).loss for one in batches[1:])], first.grad_norm, kept)


def _rank_batches(rehearsal: TinyTraining, layout: LayoutCase, rank: int, steps: int = _STEPS) -> list[list[Batch]]:
    plan = layout.plan()
    if layout.packed and not rehearsal.takes_packed:
        raise UserError(NOT_PACKED)
    return [[rehearsal.rank_batch(plan, rank, index, packed=layout.packed)] for index in range(steps)]


def _one_device(rehearsal: TinyTraining, layout: LayoutCase, steps: int = _STEPS) -> _RunFigures:
    """One device's numbers, of packed samples one by one. Kept, since a process compares many layouts with the same.

    In FP8 the samples of a pass share a scale: one device then passes as many together as a rank of the layout does.
    Where a step is not finite an engine asks all ranks that there are, so either all compute them now or none.
    """
    is_fp8, plan = rehearsal.precision.fp8 is not None, layout.plan()
    parts = plan.data * plan.microbatches if is_fp8 else 1
    key = rehearsal.name, layout.packed, steps, parts
    if all_reduce_max(float(key not in _ALONE))[0]:
        one_by_one = layout.packed and not is_fp8
        batches = [
            rehearsal.one_by_one(n) if one_by_one else [rehearsal.batch(n, packed=layout.packed)] for n in range(steps)
        ]
        _ALONE[key] = _run_steps(rehearsal.by_torch().start(ParallelPlan(microbatches=parts)), batches)
    return _ALONE[key]


def _compare(found: _RunFigures, alone: _RunFigures) -> tuple[float, dict[str, float]]:
    loss = max(abs(one - other) / abs(other) for one, other in zip(found.losses, alone.losses, strict=True))
    least = _NOTHING * alone.norm
    by_name = {}
    for name, one in found.gradients.items():
        # Stages of a pipeline add up zeros for what no input reaches, such as an image's embedding without an image.
        expected = alone.gradients.get(name, torch.zeros_like(one))
        by_name[name] = float((one - expected).norm() / max(float(expected.norm()), least))
    return loss, {**by_name, _NORM: abs(found.norm - alone.norm) / alone.norm}


def blocks(model: torch.nn.Module) -> int:
    """How many parts a pipeline can cut it into at most."""
    return len(list(model.get_submodule(model.plan().blocks).children())) if isinstance(model, Divisible) else 1


def is_cut(model: torch.nn.Module) -> bool:
    """Whether the model says how its linears can be split."""
    return isinstance(model, Divisible) and bool(model.plan().row)
