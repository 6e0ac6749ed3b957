"""Makes small batches of sessions, with groups of features that repeat, for tests of recommenders."""

import torch
from torch import Tensor

from nemo_vfm.sparse.deduped_group import DedupedGroup
from nemo_vfm.sparse.feature_batch import FeatureBatch
from nemo_vfm.sparse.jagged import Jagged

#: Rows of the tables of a feature.
ROWS = {"item": 50, "category": 7, "country": 9, "device": 4}
LONGEST = 9


def session_batch(samples: int = 24, unique: int = 7, dense: int = 3, seed: int = 0) -> FeatureBatch:
    """Plain item, category and device; a group user of country, history, categories and times.

    Some bags and histories are empty, among them the history of the first unique row.
    """
    made = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, LONGEST + 1, (unique,), generator=made)
    lengths[0], lengths[1] = 0, LONGEST
    times = [torch.randint(0, 10_000, (int(one),), generator=made).sort().values for one in lengths]
    user = {
        "country": _bags(ROWS["country"], torch.randint(0, 4, (unique,), generator=made), made),
        "history": _bags(ROWS["item"], lengths, made),
        "categories": _bags(ROWS["category"], lengths, made),
        "times": Jagged(torch.cat(times), lengths),
    }
    ones = torch.ones(samples, dtype=torch.int64)
    plain = {name: _bags(ROWS[name], ones, made) for name in ("item", "category")}
    plain["device"] = _bags(ROWS["device"], torch.randint(0, 3, (samples,), generator=made), made)
    inverse = torch.cat([torch.arange(unique), torch.randint(0, unique, (samples - unique,), generator=made)])
    return FeatureBatch(
        3, torch.arange(samples) + 100, torch.ones(samples), torch.randn(samples, dense, generator=made),
        {"click": torch.randint(0, 2, (samples,), generator=made).float()}, plain,
        {"user": DedupedGroup(user, inverse.sort().values)},
    )  # fmt: skip


def _bags(rows: int, lengths: Tensor, made: torch.Generator) -> Jagged:
    return Jagged(torch.randint(0, rows, (int(lengths.sum()),), generator=made), lengths)
