"""Declares how a model can be split: names of its parts for an engine and its optimizer, and nothing that computes."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Protocol, TypeAlias, runtime_checkable

import torch
from torch import nn

from nemo_vfm.core.types.factory import Factory

#: With their names, or without.
Params: TypeAlias = Iterable[nn.Parameter] | Iterable[tuple[str, nn.Parameter]]
OptimizerFactory: TypeAlias = Factory[[Params], torch.optim.Optimizer]
#: One for all parameters, or one for each child of the model, by its name: they update in turns, in this order.
Optimizers: TypeAlias = OptimizerFactory | Mapping[str, OptimizerFactory]


@dataclass(frozen=True, slots=True)
class ShardingSpec:
    """Module names, as `named_modules` spells them, with `*` for any block number."""

    column: tuple[str, ...]  #: linears whose output features may be split; their outputs feed only `row` linears
    row: tuple[str, ...]  #: linears whose input features may be split; their outputs are summed over the parts
    blocks: str  #: the `ModuleList` that a pipeline may cut between any two entries
    recompute: tuple[str, ...]  #: modules worth running again in backward instead of keeping their activations
    #: those of `column` whose input is whole on every device, such as a text, and no part of the tokens
    whole_input: tuple[str, ...] = ()
    #: modules that feed only linears of `whole_input`, so each device has their whole gradient
    whole_gradient: tuple[str, ...] = ()
    #: embeddings whose rows, one a word, may be split; each device looks up the words that it has
    vocabulary: tuple[str, ...] = ()
    #: modules whose parameters serve every attention head alike, while each device has only some heads
    per_head: tuple[str, ...] = ()
    #: norms across all heads (`RMSNormAcrossHeads`): each device has the weights of its heads, and squares are summed
    #: over devices
    across_heads: tuple[str, ...] = ()
    #: attention heads, which tensor and all-to-all splits divide; of keys and values where they are fewer
    heads: int = 1
    #: heads of queries where the model lets several tensor ranks share a head of keys and values (`shared_heads`); None
    #: where tensor ranks must divide `heads`
    query_heads: int | None = None
    first: tuple[str, ...] = ()  #: modules that only the first pipeline stage needs
    last: tuple[str, ...] = ()  #: modules that only the last pipeline stage needs
    every: tuple[str, ...] = ()  #: modules that every pipeline stage repeats, because sending their output costs more
    #: tokens that some attention looks back at, which no context ranks do; None where all looks at all
    window: int | None = None
    one_device: bool = False  #: whether it trains on one device alone, as a mixture of experts does

    def ranks_per_kv_head(self, tensor: int) -> int:
        """How many of so many tensor ranks use one head of keys and values."""
        return max(1, tensor // self.heads) if self.query_heads else 1

    def tensor_degrees(self) -> list[int]:
        """Numbers of tensor ranks that the heads allow, which divide those of queries."""
        queries = self.query_heads or self.heads
        divisors = [n for n in range(1, queries + 1) if queries % n == 0]
        return [n for n in divisors if self.heads % n == 0 or n % self.heads == 0]

    def patterns(self) -> tuple[str, ...]:
        """Every name this plan mentions."""
        ends = (*self.first, *self.last, *self.every)
        split = (*self.column, *self.row, *self.whole_input, *self.vocabulary)
        return (*split, *self.whole_gradient, *self.per_head, *self.across_heads, self.blocks, *self.recompute, *ends)


@runtime_checkable
class Divisible(Protocol):
    """A model that declares how it can be cut."""

    def plan(self) -> ShardingSpec:
        """The declared plan."""
        ...


@runtime_checkable
class SeveralNetworks(Protocol):
    """A model that calls one of several networks at a time, each of which is cut by itself."""

    def networks(self) -> "Sequence[nn.Module]":
        """All of them."""
        ...


def networks_of(model: "nn.Module") -> "Sequence[nn.Module]":
    """The networks of a model that are cut one by one; most are one."""
    return model.networks() if isinstance(model, SeveralNetworks) else [model]


def match_modules(patterns: str | Iterable[str], names: Collection[str]) -> list[str]:
    """The module names that patterns stand for, in their order; `*` matches within one part of a dotted name only."""
    found = []
    for pattern in (patterns,) if isinstance(patterns, str) else patterns:
        depth = pattern.count(".")
        found += [name for name in names if name.count(".") == depth and fnmatchcase(name, pattern)]
    return found
