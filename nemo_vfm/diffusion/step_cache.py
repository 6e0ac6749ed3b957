"""Skips the blocks of a sampling step whose output would hardly change, and counts them.

The first block always runs. If its residual is close to that of the last full step, the residual of the other blocks at
that step is reused (first-block cache, as in ParaAttention and diffusers; TeaCache, Liu et al. 2024, arXiv 2411.19108,
decides by the timestep embedding instead). A block's residual is its output minus its input.
Shape letters: B batch, S tokens, D width of a token.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from math import inf, isfinite
from typing import Any

import torch
from torch import Tensor, nn

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.types.model_traits import HasBlockLoop
from nemo_vfm.parallel.layers.token_layout import greatest_in_lockstep, sum_over_tokens

#: Branch of a rank whose estimate is not used, because it only waits for the other rank's.
IDLE = "idle"


class FirstBlockCache:
    """Reuses the residual of all blocks but the first from an earlier step.

    Args:
        threshold: blocks are skipped if the first block's residual changed by less than this fraction (mean absolute
            change over mean absolute value) for every video of a batch. 0 skips none and gives the bits of no cache.
        measure: sample again without the cache and report the difference; this adds the time of an uncached run.
    """

    def __init__(self, *, threshold: float, measure: bool = False) -> None:
        if threshold < 0 or not isfinite(threshold):
            raise ValueError(
                f"threshold must be at least 0, got {threshold}; docs/how-to/video/sampling.md lists the errors of some"
            )
        self.threshold, self.measure = threshold, measure

    def begin(self, model: nn.Module) -> "CachedSteps":
        """Create the cache for sampling one batch; UserError where the model does not support skipping blocks."""
        networks = [one for one in model.modules() if isinstance(one, HasBlockLoop)]
        if not networks:
            raise UserError(f"{type(model).__name__} has no use_block_loop, so a step cache cannot skip its "
                            f"blocks; set pipeline.step_cache to null")  # fmt: skip
        return CachedSteps(networks, self.threshold)


class CachedSteps:
    """The cache for sampling one batch, with one entry per network of a model."""

    def __init__(self, networks: Sequence[HasBlockLoop], threshold: float) -> None:
        self._caches = [(network, _BlockCache(threshold)) for network in networks]

    @contextmanager
    def call(self, branches: Sequence[str]) -> Iterator[None]:
        """Activate the cache for one call of the model."""
        for network, cache in self._caches:
            cache.branches = tuple(branches)
            network.use_block_loop(cache)
        try:
            yield
        finally:
            for network, _ in self._caches:
                network.use_block_loop(None)

    def counts(self) -> tuple[int, int]:
        """(blocks in all steps on this rank, those of them that were skipped)."""
        caches = [cache for _, cache in self._caches]
        return sum(cache.num_blocks for cache in caches), sum(cache.num_skipped for cache in caches)


class _BlockCache:
    """The block loop of one network; see `BlockLoop`."""

    def __init__(self, threshold: float) -> None:
        self.threshold = threshold
        self.branches: tuple[str, ...] = ()
        self.num_blocks = self.num_skipped = 0
        #: Of each branch at its last full step: residuals of the first block and of the others, (B, S, D).
        self._residuals: dict[str, tuple[Tensor, Tensor]] = {}

    def __call__(self, blocks: Iterable[nn.Module], x_BSD: Tensor, context: Any) -> Tensor:
        first, *others = blocks
        hidden_BSD: Tensor = first(x_BSD, context)
        residual_BSD = hidden_BSD - x_BSD
        self.num_blocks += 1 + len(others)
        parts = residual_BSD.chunk(len(self.branches))
        change = inf  # the largest of all videos, over the ranks that run the same blocks
        if self.threshold > 0:
            branches = torch.tensor(max(map(self._branch_change, self.branches, parts)), device=x_BSD.device)
            change = float(greatest_in_lockstep(branches))
        if change < self.threshold:
            self.num_skipped += len(others)
            cached = [torch.zeros_like(part) if branch == IDLE else self._residuals[branch][1]
                      for branch, part in zip(self.branches, parts, strict=True)]  # fmt: skip
            return hidden_BSD + torch.cat(cached)
        out_BSD = hidden_BSD
        for block in others:
            out_BSD = block(out_BSD, context)
        rest = (out_BSD - hidden_BSD).chunk(len(self.branches))
        for branch, own, following in zip(self.branches, parts, rest, strict=True):
            if branch != IDLE:
                self._residuals[branch] = own, following
        return out_BSD

    def _branch_change(self, branch: str, residual_BSD: Tensor) -> float:
        if branch == IDLE:
            return 0.0
        before, _ = self._residuals.get(branch, (None, None))
        changes, sizes = (residual_BSD, residual_BSD) if before is None else (residual_BSD - before, before)
        sums_2B = sum_over_tokens(torch.stack([one.float().abs().sum((1, 2)) for one in (changes, sizes)]))
        return inf if before is None else float((sums_2B[0] / sums_2B[1].clamp(min=1e-30)).max())
