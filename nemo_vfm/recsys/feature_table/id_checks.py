"""Finds ids that are no rows of their tables, and puts row 0 in their place.

Shape letters: B samples, U unique rows, N values.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch

from nemo_vfm.sparse.deduped_group import DedupedGroup
from nemo_vfm.sparse.feature_batch import FeatureBatch
from nemo_vfm.sparse.jagged import Jagged


def ids_in_range(batch: FeatureBatch, num_rows: Mapping[str, int]) -> tuple[FeatureBatch, dict[int, str]]:
    """The batch with valid ids, and for each sample that had another what was wrong.

    Args:
        num_rows: of features, the rows of their tables; ids of the others are not checked.
    """
    features, wrong = _mended(batch.features, num_rows)
    groups = dict(batch.groups)
    for name, group in batch.groups.items():
        mended, wrong_rows = _mended(group.features, num_rows)
        if wrong_rows:
            groups[name] = DedupedGroup(mended, group.inverse_B)
            bad_U = torch.zeros(group.num_unique, dtype=torch.bool)
            bad_U[torch.tensor([*wrong_rows])] = True
            for sample in bad_U[group.inverse_B].nonzero().squeeze(1).tolist():
                wrong.setdefault(sample, wrong_rows[int(group.inverse_B[sample])])
    return replace(batch, features=features, groups=groups), wrong


def _mended(features: Mapping[str, Jagged], num_rows: Mapping[str, int]) -> tuple[dict[str, Jagged], dict[int, str]]:
    mended, wrong = dict(features), dict[int, str]()
    for name in features.keys() & num_rows.keys():
        rows, most = features[name], num_rows[name]
        bad_N = (rows.values_N < 0) | (rows.values_N >= most)
        if not bad_N.any():
            continue
        mended[name] = Jagged(rows.values_N.masked_fill(bad_N, 0), rows.lengths_B, rows.weights_N)
        place_N = bad_N.nonzero().squeeze(1)
        row_N = torch.searchsorted(rows.offsets, place_N, right=True) - 1
        for row, value in zip(row_N.tolist(), rows.values_N[place_N].tolist(), strict=True):
            wrong.setdefault(row, f"{name} has the id {value}, but its table has the rows 0 to {most - 1}")
    return mended, wrong
