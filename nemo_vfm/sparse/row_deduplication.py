"""Stores rows that repeat once: exact deduplication of features by groups (RecD's O3).

Shape letters: B samples, M rows whose representative is not known yet.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from nemo_vfm.sparse.deduped_group import DedupedGroup
from nemo_vfm.sparse.jagged import Jagged, run_begins
from nemo_vfm.sparse.row_fingerprint import differs, fingerprints

#: Columns and a seed -> one int64 a row; another seed gives unrelated numbers.
_Hash: TypeAlias = Callable[[Sequence[Jagged], int], Tensor]


def deduplicate(
    features: Mapping[str, Jagged], groups: Mapping[str, Sequence[str]], *, clustered: bool = False
) -> dict[str, DedupedGroup]:
    """Each group with its unique rows in order of first occurrence. `expand()` gives exactly the features back.

    Two rows are equal if all features of the group have the same lengths, values and bits of weights. They are found
    by fingerprint and then compared, so no collision can join different rows. O(values + B log B).

    Args:
        features: of each feature the rows of all B samples.
        groups: a name for each group -> its features; features of no group are left out.
        clustered: compare each row with the one before only. It costs less, and finds all copies where those of a
            session follow each other; a row that comes back later is stored again.

    Raises:
        ValueError: a feature of a group is missing or in two groups, a group is empty, or its features have different
            numbers of rows.
        DataError: lengths of a feature are negative or do not add up to its values.
    """
    taken: dict[str, str] = {}
    for group, names in groups.items():
        if not names:
            raise ValueError(f"group {group} has no features; name some or leave it out")
        for name in names:
            if name not in features:
                raise ValueError(f"group {group} names the feature {name}; the features are {', '.join(features)}")
            if name in taken:
                raise ValueError(
                    f"the feature {name} is in the groups {taken[name]} and {group}; it can be in only one"
                )
            taken[name] = group
            features[name].require_valid(feature=name)
        if len(set((rows := {name: len(features[name]) for name in names}).values())) > 1:
            raise ValueError(f"the features of group {group} have different numbers of rows: {rows}")
    found = _runs if clustered else _representatives
    groups_found = {}
    for group, names in groups.items():
        representative_B = found([features[name] for name in names])
        # Rows that are their own representatives are the unique ones.
        own_B = representative_B == torch.arange(len(representative_B), device=representative_B.device)
        inverse_B = (own_B.cumsum(0) - 1)[representative_B]
        unique_U = own_B.nonzero().squeeze(1)
        groups_found[group] = DedupedGroup({name: features[name].select(unique_U) for name in names}, inverse_B)
    return groups_found


def row_changes(features: Sequence[Jagged]) -> Tensor:
    """Whether any of the features differs from the row before: bool, B; False in the first row."""
    row_B = torch.arange(len(features[0]), device=features[0].lengths_B.device)
    return differs(_columns(features), (row_B - 1).clamp_(min=0))


def _representatives(features: Sequence[Jagged], hashed: _Hash = fingerprints) -> Tensor:
    """Of each row the first one that equals it.

    Runs of equal rows are joined first, since most samples of a session stand side by side and comparing costs a third
    of hashing. A row that differs from the first one of its fingerprint is a collision. All such rows are hashed once
    more with another seed, until none is left: each round settles at least the first row of each fingerprint.
    """
    run_B = _runs(features)
    left_M = (run_B == torch.arange(len(run_B), device=run_B.device)).nonzero().squeeze(1)
    columns = [column.select(left_M) for column in _columns(features)]
    found_B, seed = torch.empty_like(run_B), 0
    while len(left_M):
        ordered_M, order_M = torch.sort(hashed(columns, seed), stable=True)
        begins_M = run_begins(ordered_M)
        first_M = order_M[begins_M][begins_M.cumsum(0) - 1]
        first_M = torch.empty_like(order_M).scatter_(0, order_M, first_M)
        found_B[left_M] = left_M[first_M]
        again = differs(columns, first_M).nonzero().squeeze(1)
        left_M, columns, seed = left_M[again], [column.select(again) for column in columns], seed + 1
    return found_B[run_B]


def _runs(features: Sequence[Jagged]) -> Tensor:
    """Of each row the first one of its run of equal rows."""
    row_B = torch.arange(len(features[0]), device=features[0].lengths_B.device)
    return torch.where(row_changes(features), row_B, 0).cummax(0).values if len(row_B) else row_B


def _columns(features: Sequence[Jagged]) -> list[Jagged]:
    """What must be equal: values, and weights where there are any."""
    weights = [Jagged(one.weights_N, one.lengths_B) for one in features if one.weights_N is not None]
    return [*(Jagged(one.values_N, one.lengths_B) for one in features), *weights]
