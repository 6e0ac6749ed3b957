# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Connects the ranks that draw videos together: who makes which estimate, what they exchange, what all agree on.

In a process that draws alone each method gives back its argument.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch.distributed as dist
from torch import Tensor

from nemo_vfm.core.device import device
from nemo_vfm.parallel.context.token_layout import all_parts
from nemo_vfm.parallel.plan.mesh import Mesh, group_among, join
from nemo_vfm.parallel.plan.sampling_plan import SamplingPlan
from nemo_vfm.parallel.ranks.consensus import everyone_says


@dataclass(frozen=True, slots=True)
class SamplingRanks:
    """This process among those that draw.

    Args:
        plan: the degrees.
        mesh: where the weights lie; None where this process draws alone.
        pair: the ranks that make the estimates of one video; None where this one makes both.
        lockstep: the ranks that run the same blocks at the same time; None where this one runs them alone.
    """

    plan: SamplingPlan = field(default_factory=SamplingPlan)
    mesh: Mesh | None = None
    pair: dist.ProcessGroup | None = None
    lockstep: dist.ProcessGroup | None = None

    @property
    def rank(self) -> int:
        """Of this process among all."""
        return 0 if self.mesh is None else self.mesh.rank

    @property
    def data_rank(self) -> int:
        """Which of the groups with prompts of their own it belongs to."""
        return self.plan.data_rank(self.rank)

    @property
    def branch(self) -> int | None:
        """The estimate that this rank makes: 0 with the text, 1 without; None where it makes both."""
        return None if self.pair is None else self.plan.branch(self.rank)

    @property
    def writes(self) -> bool:
        """Whether this rank decodes the videos of its group."""
        return self.plan.writes(self.rank)

    @property
    def has_plain_weights(self) -> bool:
        """Whether this rank has all weights of the network, so that they can be moved."""
        return not self.plan.is_sharded and self.plan.tensor == 1

    def estimates(self, own: Tensor) -> list[Tensor]:
        """The estimates of both ranks of a pair, with the text first."""
        assert self.pair is not None
        return all_parts(own, self.pair)

    def everyone_says(self, text: str) -> list[str]:
        """Each rank's text, by rank; nobody goes on before all have come here.

        Raises:
            LostRank: another rank died or does not answer.
        """
        return [text] if self.mesh is None else everyone_says(text)


def join_sampling(plan: SamplingPlan) -> SamplingRanks:
    """Meet the other ranks of a plan.

    Raises:
        UserError: their number is not the plan's, or this process was not started as one of several.
    """
    if plan.world == 1:
        return SamplingRanks(plan)
    mesh = join(plan.layout(), device())
    pair = None if plan.guidance == 1 else group_among(_pairs(plan))
    runs = [range(first, first + plan.replica) for first in range(0, plan.world, plan.replica)]
    return SamplingRanks(plan, mesh, pair, None if plan.replica == 1 else group_among(runs))


def _pairs(plan: SamplingPlan) -> list[Sequence[int]]:
    """Ranks that differ in their estimate alone."""
    apart = plan.context * plan.tensor
    firsts = [rank for rank in range(plan.world) if plan.branch(rank) == 0]
    return [(first, first + apart) for first in firsts]
