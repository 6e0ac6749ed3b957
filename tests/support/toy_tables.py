"""Trains a tiny model with embedding tables for a few steps under a plan, and the same model by torch alone.

Samples share rows, and a sample may have none: a rank that forgets another's gradients cannot be right by chance.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from nemo_vfm.core.precision import Precision
from nemo_vfm.core.types.task import ModelInputs
from nemo_vfm.parallel.engine.step_runner import EngineInputs, StepRunner
from nemo_vfm.parallel.engine.torch_engine import TorchEngine
from nemo_vfm.parallel.plan.plan import ParallelPlan
from nemo_vfm.sparse.feature_batch import FeatureBatch
from nemo_vfm.sparse.jagged import Jagged
from nemo_vfm.sparse.tables.fused_tables import FusedTables
from nemo_vfm.sparse.tables.row_optimizer import RowOptimizer, RowSgd
from nemo_vfm.sparse.tables.table_spec import TableSpec

ROWS, WIDTH, SAMPLES, LR = 7, 4, 8, 0.5


class ToyRecommender(nn.Module):
    """A linear of dense numbers and of a pooled feature."""

    def __init__(self, optimizer: RowOptimizer = RowSgd(LR)) -> None:
        super().__init__()
        self.tables = FusedTables({"items": TableSpec(ROWS, WIDTH, ("item",))}, optimizer, seed=5)
        self.head = nn.Linear(WIDTH + 2, 1)

    def forward(self, values_N: Tensor, lengths_B: Tensor, dense_BF: Tensor) -> Tensor:
        pooled_BD = self.tables.lookup({"item": Jagged(values_N, lengths_B)})["item"]
        return self.head(torch.cat([pooled_BD, dense_BF], 1))[:, 0]  # type: ignore[no-any-return]


class BagRecommender(nn.Module):
    """The same with `nn.EmbeddingBag`, whose rows are a parameter."""

    def __init__(self) -> None:
        super().__init__()
        like = ToyRecommender()
        self.bag = nn.EmbeddingBag.from_pretrained(like.tables.state()["items.weight"].clone(), False, mode="sum")
        self.head = like.head

    def forward(self, values_N: Tensor, lengths_B: Tensor, dense_BF: Tensor) -> Tensor:
        pooled_BD = self.bag(values_N, lengths_B.cumsum(0) - lengths_B)
        return self.head(torch.cat([pooled_BD, dense_BF], 1))[:, 0]  # type: ignore[no-any-return]


class Squares:
    """Learns a label by its squared error."""

    def prepare(self, batch: FeatureBatch, *, seed: int, training: bool) -> ModelInputs:
        """The feature `item` and the dense numbers."""
        item = batch.features["item"]
        inputs = {"values_N": item.values_N, "lengths_B": item.lengths_B, "dense_BF": batch.dense_BF}
        return ModelInputs(inputs, dict(batch.labels), batch.weight_B)

    def losses(self, output: Tensor, prepared: ModelInputs) -> Tensor:
        """(B,)."""
        return (output - prepared.targets["y"]).square()


def toy_batch(index: int, begin: int = 0, end: int = SAMPLES) -> FeatureBatch:
    """Samples begin..end of a global batch."""
    draw = torch.Generator().manual_seed(index)
    lengths = torch.randint(0, 4, (SAMPLES,), generator=draw)
    item = Jagged(torch.randint(0, ROWS, (int(lengths.sum()),), generator=draw), lengths)
    weight, dense = torch.rand(SAMPLES, generator=draw), torch.randn(SAMPLES, 2, generator=draw)
    labels = {"y": torch.randn(SAMPLES, generator=draw)}
    return FeatureBatch(index, torch.arange(SAMPLES), weight, dense, labels, {"item": item}).rows(begin, end)


def started(plan: ParallelPlan = ParallelPlan(), optimizer: RowOptimizer = RowSgd(LR), **engine: Any) -> StepRunner:
    """An engine with the toy model; the dense weights learn by SGD, too."""
    found = TorchEngine(**engine)
    model = partial(ToyRecommender, optimizer)
    found = found.start(EngineInputs(model, Squares(), partial(torch.optim.SGD, lr=LR), Precision("fp32"), 3, plan))
    return found


def weights(engine: StepRunner) -> dict[str, Tensor]:
    state = engine.model.state_dict()
    return {name: one.full_tensor() if hasattr(one, "full_tensor") else one.clone() for name, one in state.items()}


def steps(rank: int, degrees: dict[str, Any], optimizer: RowOptimizer, engine: dict[str, Any]) -> dict[str, Any]:
    """Losses, norms and final weights of three steps on this rank's slices."""
    plan = ParallelPlan(**degrees)
    made, share = started(plan, optimizer, **engine), SAMPLES // plan.data
    begin = plan.data_rank(rank) * share
    results = [made.step([toy_batch(index, begin, begin + share)]) for index in range(3)]
    return {
        "loss": [one.loss for one in results],
        "norm": [one.grad_norm for one in results],
        "weights": {name: one.tolist() for name, one in weights(made).items()},
    }
