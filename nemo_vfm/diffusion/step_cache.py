# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Leaves out the blocks of a step that would change little, and counts them.

The first block is always computed. If what it adds to the tokens is nearly what it added at the last step that was
computed whole, the other blocks are taken to add what they added then (first-block cache, as in ParaAttention and
diffusers; TeaCache, Liu et al. 2024, arXiv 2411.19108, decides by the noise level's embedding instead).
Shape letters: B batch, S tokens, D width of a token.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf, isfinite
from typing import Any

import torch
from torch import Tensor, nn

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.types.block_loop import HasBlockLoop, one_after_another
from nemo_vfm.parallel.context.token_layout import greatest_in_lockstep, sum_over_tokens

#: The rows of a call whose result is not used: on a rank that waits for the other estimate.
IDLE = "idle"


class FirstBlockCache:
    """Reuses what all blocks but the first added at an earlier step.

    Args:
        threshold: blocks are left out where the mean change of what the first block adds is below this share of its
            mean size, for every video of a batch. 0 leaves out none, and gives the same bits as no cache.
        measure: draw everything once more without the cache, and report the difference; takes as long as both.

    Raises:
        ValueError: a threshold below 0.
    """

    def __init__(self, *, threshold: float, measure: bool = False) -> None:
        if threshold < 0 or not isfinite(threshold):
            raise ValueError(f"threshold must be 0 or above, got {threshold}; docs/sampling.md has the error of some")
        self.threshold, self.measure = threshold, measure

    def begin(self, model: nn.Module) -> "CachedSteps":
        """The cache of one drawing.

        Raises:
            UserError: the model does not let its blocks be left out.
        """
        networks = [one for one in model.modules() if isinstance(one, HasBlockLoop)]
        if not networks:
            raise UserError(f"{type(model).__name__} has no use_block_loop, so a step cache cannot leave out its "
                            f"blocks; set pipeline.step_cache to null")  # fmt: skip
        return CachedSteps(networks, self.threshold)


class CachedSteps:
    """The cache of one drawing, for each network of a model.

    Args:
        networks: whose blocks are left out.
        threshold: see `FirstBlockCache`.
    """

    def __init__(self, networks: Sequence[HasBlockLoop], threshold: float) -> None:
        self._caches = [(network, _BlockCache(threshold)) for network in networks]

    @contextmanager
    def call(self, branches: Sequence[str]) -> Iterator[None]:
        """Inside, the networks leave out blocks.

        Args:
            branches: of the rows of a batch, each of which has a cache of its own, such as cond and uncond.
        """
        for network, cache in self._caches:
            cache.branches = tuple(branches)
            network.use_block_loop(cache)
        try:
            yield
        finally:
            for network, _ in self._caches:
                network.use_block_loop(one_after_another)

    @property
    def num_blocks(self) -> int:
        """Blocks of all steps, on this rank."""
        return sum(cache.num_blocks for _, cache in self._caches)

    @property
    def num_skipped(self) -> int:
        """Those of them that were left out."""
        return sum(cache.num_skipped for _, cache in self._caches)


@dataclass(frozen=True, slots=True)
class _Added:
    """What blocks added to the tokens of a branch at the last step that was computed whole, (B, S, D)."""

    by_first: Tensor
    by_others: Tensor


class _BlockCache:
    """See `BlockLoop`: of one network."""

    def __init__(self, threshold: float) -> None:
        self.threshold = threshold
        self.branches: tuple[str, ...] = ()
        self.num_blocks = self.num_skipped = 0
        self._added: dict[str, _Added] = {}

    def __call__(self, blocks: Iterable[nn.Module], x_BSD: Tensor, context: Any) -> Tensor:
        first, *others = blocks
        begun_BSD: Tensor = first(x_BSD, context)
        added_BSD = begun_BSD - x_BSD
        self.num_blocks += 1 + len(others)
        if self._changed_by(added_BSD) < self.threshold:
            self.num_skipped += len(others)
            return begun_BSD + self._by_others(added_BSD)
        out_BSD = one_after_another(others, begun_BSD, context)
        self._keep(added_BSD, out_BSD - begun_BSD)
        return out_BSD

    def _changed_by(self, added_BSD: Tensor) -> float:
        """The largest relative change of all videos, the same on all ranks that run the same blocks."""
        if self.threshold == 0:
            return inf
        change = max(map(self._of_branch, self.branches, self._parts(added_BSD)))
        return float(greatest_in_lockstep(torch.tensor(change, device=added_BSD.device)))

    def _of_branch(self, branch: str, added_BSD: Tensor) -> float:
        if branch == IDLE:
            return 0.0
        before = self._added.get(branch)
        changes = added_BSD if before is None else added_BSD - before.by_first
        sizes = added_BSD if before is None else before.by_first
        sums_2B = sum_over_tokens(torch.stack([one.float().abs().sum((1, 2)) for one in (changes, sizes)]))
        return inf if before is None else float((sums_2B[0] / sums_2B[1].clamp(min=1e-30)).max())

    def _by_others(self, added_BSD: Tensor) -> Tensor:
        """What the other blocks are taken to add; zeros for rows that nobody uses."""
        parts = zip(self.branches, self._parts(added_BSD), strict=True)
        return torch.cat([torch.zeros_like(part) if branch == IDLE else self._added[branch].by_others
                          for branch, part in parts])  # fmt: skip

    def _keep(self, by_first: Tensor, by_others: Tensor) -> None:
        for branch, first, others in zip(self.branches, self._parts(by_first), self._parts(by_others), strict=True):
            if branch != IDLE:
                self._added[branch] = _Added(first, others)

    def _parts(self, rows_BSD: Tensor) -> Sequence[Tensor]:
        return rows_BSD.chunk(len(self.branches))
