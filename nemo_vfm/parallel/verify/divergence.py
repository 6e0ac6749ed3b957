"""Compares two recordings of the same steps and finds the first step, module and rank where they differ.

Forward comes before backward, since a wrong output makes every gradient before it wrong; the loss stands between them.
Gradients come in the order of the backward pass, the last module's first.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from nemo_vfm.parallel.plan.plan import ParallelPlan
from nemo_vfm.parallel.verify.activation_recorder import Place, RecordedStep, place
from nemo_vfm.parallel.verify.tiny_training import SAMPLES

Phase = Literal["forward", "loss", "gradient", "weight"]
_NOTHING = 1e-6  # of the norm of all gradients; a smaller one is rounding itself


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two."""

    name: str  #: A or B
    plan: ParallelPlan  #: how its ranks share the work
    seen: Sequence[Sequence[RecordedStep]]  #: by rank, step by step


@dataclass(frozen=True, slots=True)
class SideDifference:
    """How far the sides are apart at one place."""

    step: int  #: counted from 1
    phase: Phase  #: forward (a module's output), loss, gradient or weight (after the step)
    name: str  #: of the module or the parameter
    size: float  #: relative, as L2 norms; infinite where one side has nothing there
    side: str  #: whose rank it is that departs from one device; the second's where it cannot be told
    rank: int  #: which


@dataclass(frozen=True, slots=True)
class DivergenceReport:
    """What a comparison found."""

    largest: dict[tuple[int, Phase], SideDifference]  #: by step and phase, the largest difference
    compared: dict[tuple[int, Phase], int]  #: by step and phase, how many modules or parameters
    parting: SideDifference | None  #: the first beyond the tolerance; None where there is none
    unknown: tuple[str, ...]  #: modules whose outputs have no known place in one device's


def compare(alone: Sequence[RecordedStep], a: Side, b: Side, *, heads: int, tolerance: float) -> DivergenceReport:
    """Hold two sides against each other, up to the end of the step in which they part by more than `tolerance`.

    What one device saw, `alone`, tells shapes, order, and who is right.
    """
    largest: dict[tuple[int, Phase], SideDifference] = {}
    compared: dict[tuple[int, Phase], int] = {}
    parting, unknown = None, list[str]()
    for index, one in enumerate(alone):
        for found in _differences(index, one, a, b, heads, unknown):
            key = found.step, found.phase
            compared[key] = compared.get(key, 0) + 1
            if key not in largest or found.size > largest[key].size:
                largest[key] = found
            if parting is None and not found.size <= tolerance:  # a number that is none is beyond any
                parting = found
        if parting is not None:
            break
    return DivergenceReport(largest, compared, parting, tuple(dict.fromkeys(unknown)))


def _differences(
    index: int, alone: RecordedStep, a: Side, b: Side, heads: int, unknown: list[str]
) -> Iterator[SideDifference]:  # fmt: skip
    for number, name in enumerate(alone.order):
        call = alone.order[:number].count(name)  # a module may be called more than once in a forward
        try:
            sides = [_pieces(one, index, name, alone, call, heads) for one in (a, b)]
        except LookupError:
            unknown.append(name)
            continue
        yield _difference(index, "forward", name, alone.outputs[name][call], sides)
    losses = [[one[index].loss for one in side.seen] for side in (a, b)]
    middle, scale = losses[0][0], abs(alone.loss) or 1.0
    rank = max(range(len(losses[1])), key=lambda n: abs(losses[1][n] - middle))
    yield SideDifference(index + 1, "loss", "loss", abs(losses[1][rank] - middle) / scale, "B", rank)
    yield from _of_parameters(index, "gradient", alone, a, b)
    yield from _of_parameters(index, "weight", alone, a, b)


_Piece = tuple[str, int, Place, Tensor]  # side, rank, where, what


def _pieces(side: Side, index: int, name: str, alone: RecordedStep, call: int, heads: int) -> list[_Piece]:
    """What each rank has of one call's output."""
    found, whole = [], alone.outputs[name]
    for rank, seen in enumerate(side.seen):
        if parts := seen[index].outputs.get(name, [])[call :: len(whole)]:  # else another stage of a pipeline has it
            # Of microbatches one after another as of all samples; of an output without samples, the first.
            own = torch.cat(list(parts)) if whole[call].shape[0] == SAMPLES else parts[0]
            where = place(own.shape, whole[call].shape, side.plan, rank, heads)
            if where is None:
                raise LookupError(name)
            found.append((side.name, rank, where, own))
    return found


def _difference(
    index: int, phase: Phase, name: str, alone: Tensor, sides: Sequence[list[_Piece]], least: float = 0.0
) -> SideDifference:
    """The largest difference between what each side's ranks have and what the other side has there."""
    scale = max(_mean(alone), least) or 1.0
    others = [torch.full_like(alone, math.nan) for _ in sides]
    for pieces, other in zip(reversed(sides), others, strict=True):
        for _, _, where, own in reversed(pieces):  # of what several ranks have, the first one's
            other[where] = own
    sizes = [
        _mean(own - other[where]) / scale
        for pieces, other in zip(sides, others, strict=True)
        for _, _, where, own in pieces
    ]
    everybody = [piece for pieces in sides for piece in pieces]
    # Who is further from one device is to blame; where both are as far, the second side.
    guilt = [_mean(own - alone[where]) / scale for _, _, where, own in everybody]
    side, rank = ("B", 0) if not any(guilt) else everybody[max(range(len(guilt)), key=guilt.__getitem__)][:2]
    lacks = math.inf if not all(sides) else 0.0
    size = max([lacks, *(math.inf if size != size else size for size in sizes)])
    return SideDifference(index + 1, phase, name, size, side, rank)


def _mean(one: Tensor) -> float:
    """The root of the mean square of its numbers."""
    return float(one.double().square().mean().sqrt()) if one.numel() else 0.0


def _of_parameters(index: int, phase: Phase, alone: RecordedStep, a: Side, b: Side) -> Iterator[SideDifference]:
    own = _by_name(alone, phase)
    all_ = math.sqrt(sum(float(one.double().square().sum()) for one in own.values()))
    for name in reversed(own) if phase == "gradient" else own:
        everywhere = tuple(slice(0, size) for size in own[name].shape)
        sides = [
            [(side.name, rank, everywhere, found[name]) for rank, seen in enumerate(side.seen)
             if name in (found := _by_name(seen[index], phase))]
            for side in (a, b)
        ]  # fmt: skip
        yield _difference(index, phase, name, own[name], sides, _NOTHING * all_ / math.sqrt(own[name].numel()))


def _by_name(step: RecordedStep, phase: Phase) -> dict[str, Tensor]:
    return step.gradients if phase == "gradient" else step.weights
