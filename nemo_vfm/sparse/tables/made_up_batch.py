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
    dense: list[Tensor] = []
    labels: dict[str, list[Tensor]] = {name: [] for name in sizes.labels}
    features: dict[str, list[Jagged]] = {name: [] for name in (*sizes.rows, *([sizes.times] if sizes.times else []))}
    for place in places:
        draw = generator(seed, "made up features", f"{index}-{place}")
        dense.append(torch.randn(1, sizes.dense, generator=draw))
        for label in labels.values():
            label.append(torch.randint(2, (1,), generator=draw).float())
        common = torch.randint(_LONGEST + 1, (1,), generator=draw)
        for name, rows in sizes.rows.items():
            length = common if name in sizes.history else torch.randint(_LONGEST + 1, (1,), generator=draw)
            features[name].append(_ids(rows, length, draw))
        if sizes.times:
            pauses = _ids(_LARGEST_PAUSE, common, draw)
            features[sizes.times].append(Jagged(pauses.values_N.cumsum(0), common))
    return FeatureBatch(
        index, torch.tensor(places), weight_B, torch.cat(dense), {name: torch.cat(one) for name, one in labels.items()},
        {name: Jagged.cat(one) for name, one in features.items()},
    )  # fmt: skip


def _ids(rows: int, length: Tensor, draw: torch.Generator) -> Jagged:
    return Jagged(torch.randint(rows, (int(length),), generator=draw), length)
