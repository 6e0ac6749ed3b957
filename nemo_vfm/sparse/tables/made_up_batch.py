"""Makes small batches of features up, on which a recommender can be tried without a log.

Shape letter: B samples.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nemo_vfm.core.seed import generator
from nemo_vfm.sparse.feature_batch import FeatureBatch
from nemo_vfm.sparse.jagged import Jagged
from nemo_vfm.sparse.tables.fused_tables import tables_of

_LONGEST = 4  # ids of a sample; some samples have none
_LARGEST_PAUSE = 1_000  # seconds between two items of a history


@dataclass(frozen=True, slots=True)
class FeatureSizes:
    """What a recommender takes.

    Args:
        dense: dense numbers a sample.
        rows: of each feature, the rows of its table.
        labels: names of labels, each 0 or 1.
        history: features of one history, which have as many ids as each other.
        times: feature of its times, if any.
    """

    dense: int
    rows: Mapping[str, int]
    labels: Sequence[str]
    history: Sequence[str] = ()
    times: str | None = None

    @staticmethod
    def of(model: nn.Module, labels: Sequence[str]) -> "FeatureSizes | None":
        """Those of a model with embedding tables, which says in `input` what else it reads; None where it has none."""
        specs = [spec for tables in tables_of(model).values() for spec in tables.tables.values()]
        rows = {feature: spec.rows for spec in specs for feature in spec.features}
        if not rows:
            return None
        read = getattr(model, "input", None)
        return FeatureSizes(
            getattr(read, "dense", 0), rows, tuple(labels), tuple(getattr(read, "history", ())),
            getattr(read, "times", None),
        )  # fmt: skip


def made_up_batch(sizes: FeatureSizes, index: int, places: Sequence[int], weight_B: Tensor, seed: int) -> FeatureBatch:
    """Samples of global batch `index`; each is a function of (seed, index, its place)."""
    samples = [_sample(sizes, generator(seed, "made up features", f"{index}-{place}")) for place in places]
    features = {name: Jagged.cat([one.features[name] for one in samples]) for name in samples[0].features}
    labels = {name: torch.cat([one.labels[name] for one in samples]) for name in sizes.labels}
    return FeatureBatch(
        index, torch.tensor(places), weight_B, torch.cat([one.dense for one in samples]), labels, features
    )


@dataclass(frozen=True, slots=True)
class _Sample:
    dense: Tensor
    labels: dict[str, Tensor]
    features: dict[str, Jagged]


def _sample(sizes: FeatureSizes, draw: torch.Generator) -> _Sample:
    dense = torch.randn(1, sizes.dense, generator=draw)
    labels = {name: torch.randint(2, (1,), generator=draw).float() for name in sizes.labels}
    common = _length(draw)
    features = {
        name: _ids(rows, common if name in sizes.history else _length(draw), draw) for name, rows in sizes.rows.items()
    }
    if sizes.times is not None:
        features[sizes.times] = Jagged(_ids(_LARGEST_PAUSE, common, draw).values_N.cumsum(0), common)
    return _Sample(dense, labels, features)


def _length(draw: torch.Generator) -> Tensor:
    return torch.randint(_LONGEST + 1, (1,), generator=draw)


def _ids(rows: int, length: Tensor, draw: torch.Generator) -> Jagged:
    return Jagged(torch.randint(rows, (int(length),), generator=draw), length)
