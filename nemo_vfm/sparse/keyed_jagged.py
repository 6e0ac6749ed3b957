"""Converts features to and from TorchRec's KeyedJaggedTensor, without importing TorchRec.

TorchRec lays the rows of all keys one after another. Keys with fewer rows than samples ("variable batch") say so in
`stride_per_key_per_rank`, one list of one rank's rows for each key, and name the row of each sample in
`inverse_indices`, a pair of the keys and a tensor (keys, samples). Shape letters: B samples, F features.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch

from nemo_vfm.core.errors import DataError
from nemo_vfm.sparse.deduped_group import DedupedGroup
from nemo_vfm.sparse.jagged import Jagged

Made = TypeVar("Made")


def to_keyed_jagged(
    make: Callable[..., Made], features: Mapping[str, Jagged], groups: Mapping[str, DedupedGroup] | None = None
) -> Made:
    """The features as `make(keys=, values=, lengths=, weights=, ...)`; with groups also strides and inverse indices.

    TorchRec 1.8's unsharded EmbeddingCollection ignores the inverse indices and returns unique rows alone; give it
    expanded features.

    Args:
        make: `torchrec.KeyedJaggedTensor`.

    Raises:
        ValueError: there are no features, some have weights and some have none, or samples differ in number.
    """
    groups = groups or {}
    every = {**features, **{name: rows for group in groups.values() for name, rows in group.features.items()}}
    if not every:
        raise ValueError("there are no features to make a KeyedJaggedTensor of")
    whole = Jagged.cat([*every.values()])
    stored = {"keys": [*every], "values": whole.values_N, "lengths": whole.lengths_B, "weights": whole.weights_N}
    if len(sizes := {*map(len, features.values()), *map(len, groups.values())}) > 1:
        raise ValueError(f"features of one batch must have the same number of samples, got {sorted(sizes)}")
    if not groups:
        return make(**stored)
    identity_B = torch.arange(sizes.pop(), device=whole.lengths_B.device)
    inverse = [identity_B] * len(features) + [group.inverse_B for group in groups.values() for _ in group.features]
    strides = [[len(rows)] for rows in every.values()]
    return make(**stored, stride_per_key_per_rank=strides, inverse_indices=([*every], torch.stack(inverse)))


def from_keyed_jagged(keyed: Any) -> tuple[dict[str, Jagged], dict[str, DedupedGroup]]:
    """Plain features and groups. Keys with equal inverse indices make a group, named after its first key.

    Args:
        keyed: a `torchrec.KeyedJaggedTensor`, or what has its `keys`, `values`, `lengths`, `weights_or_none`,
            `stride_per_key` and `inverse_indices_or_none`.

    Raises:
        DataError: lengths do not add up, an inverse is no row, or keys have different numbers of rows and no inverse.
    """
    values, weights = keyed.values(), keyed.weights_or_none()
    whole = Jagged(values if values.is_floating_point() else values.long(), keyed.lengths().long(), weights)
    whole.require_valid(feature="KeyedJaggedTensor")
    rows, begin = {}, 0
    for key, stride in zip(keyed.keys(), keyed.stride_per_key(), strict=True):
        rows[key] = whole.rows(begin, begin + stride)
        begin += stride
    found = keyed.inverse_indices_or_none()
    if found is None:
        if len({len(feature) for feature in rows.values()}) > 1:
            sizes = {name: len(feature) for name, feature in rows.items()}
            raise DataError(f"keys have different numbers of rows and no inverse_indices: {sizes}.")
        return rows, {}
    inverse = dict(zip(found[0], found[1].long(), strict=True))
    if missing := rows.keys() - inverse.keys():
        raise DataError(f"inverse_indices lack {', '.join(sorted(missing))}.")
    plain, groups = {}, dict[str, Any]()
    for name, feature in rows.items():
        inverse_B = inverse[name]
        if torch.equal(inverse_B, torch.arange(len(feature), device=inverse_B.device)):
            plain[name] = feature
            continue
        same = [
            one for one, group in groups.items()
            if group.num_unique == len(feature) and torch.equal(group.inverse_B, inverse_B)
        ]  # fmt: skip
        old = groups[same[0]].features if same else {}
        groups[same[0] if same else name] = DedupedGroup({**old, name: feature}, inverse_B)
    for group in groups.values():
        group.require_valid()
    return plain, groups
