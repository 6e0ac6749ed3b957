"""Connects the ranks that sample videos together: which estimate each computes, what they exchange and agree on.

In a single process the collectives return their argument.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch.distributed as dist
from torch import Tensor

from nemo_vfm.core.device import device
from nemo_vfm.parallel.layers.token_layout import all_parts
from nemo_vfm.parallel.plan.mesh import Mesh, group_among, join
from nemo_vfm.parallel.plan.sampling_plan import SamplingPlan
from nemo_vfm.parallel.ranks.consensus import everyone_says


@dataclass(frozen=True, slots=True)
class SamplingRanks:
    """This process's place among the ranks that sample.

    Args:
        plan: the parallel degrees.
        mesh: device mesh of the weights; None for a single process.
        pair: group of the two ranks that compute the estimates of one video; None if this rank computes both.
        lockstep: group of the ranks that run the same blocks together; None if this rank runs them alone.
    """

    plan: SamplingPlan = field(default_factory=SamplingPlan)
    mesh: Mesh | None = None
    pair: dist.ProcessGroup | None = None
    lockstep: dist.ProcessGroup | None = None

    @property
    def rank(self) -> int:
        """Global rank of this process."""
        return 0 if self.mesh is None else self.mesh.rank

    @property
    def data_rank(self) -> int:
        """Index of the data-parallel group, which has its own prompts."""
        return self.plan.data_rank(self.rank)

    @property
    def branch(self) -> int | None:
        """The estimate that this rank computes: 0 conditional, 1 unconditional; None if it computes both."""
        return None if self.pair is None else self.plan.branch(self.rank)

    @property
    def writes(self) -> bool:
        """Whether this rank decodes the videos of its group."""
        return self.plan.writes(self.rank)

    @property
    def has_plain_weights(self) -> bool:
        """Whether this rank has all weights unsharded, so that they can be offloaded."""
        return not self.plan.is_sharded and self.plan.tensor == 1

    def estimates(self, estimate: Tensor) -> list[Tensor]:
        """Exchange the estimates of a pair; return the conditional one first."""
        assert self.pair is not None
        return all_parts(estimate, self.pair)

    def everyone_says(self, text: str) -> list[str]:
        """Gather each rank's text, ordered by rank; this is also a barrier.

        Raises:
            LostRank: another rank died or does not respond.
        """
        return [text] if self.mesh is None else everyone_says(text)


def join_sampling(plan: SamplingPlan) -> SamplingRanks:
    """Join the process groups of a plan.

    Raises:
        UserError: the number of ranks is not the plan's, or no launcher started this process.
    """
    if plan.world == 1:
        return SamplingRanks(plan)
    mesh = join(plan.layout(), device())
    pair = None if plan.guidance == 1 else group_among(_pairs(plan))
    runs = [range(first, first + plan.replica) for first in range(0, plan.world, plan.replica)]
    return SamplingRanks(plan, mesh, pair, None if plan.replica == 1 else group_among(runs))


def _pairs(plan: SamplingPlan) -> list[Sequence[int]]:
    """Return the pairs of ranks that differ only in their estimate."""
    distance = plan.context * plan.tensor
    firsts = [rank for rank in range(plan.world) if plan.branch(rank) == 0]
    return [(first, first + distance) for first in firsts]
