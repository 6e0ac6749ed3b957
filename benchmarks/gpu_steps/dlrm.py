"""Measures DLRM's training step on one GPU: by our engine, our tables alone, and the same network with torch's bags.

    python benchmarks/gpu_steps/dlrm.py [--json FILE] [--only WORDS] [--quick]

26 tables of 100,000 rows of width 64, 13 dense features, perceptrons 512-256-64 and 512-256-1, fp32. Ours has row-wise
AdaGrad, the bags torch's Adagrad; the other weights have AdamW.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import torch
from timing import DEVICE, Figures, by_kind, report_of, timed
from torch import Tensor, nn
from torch.nn import functional as F

from nemo_vfm.core.precision import Precision
from nemo_vfm.models.recommenders.dlrm import DLRM
from nemo_vfm.parallel.engine.step_runner import EngineInputs
from nemo_vfm.parallel.engine.torch_engine import TorchEngine
from nemo_vfm.parallel.plan.plan import ParallelPlan
from nemo_vfm.recsys.click import Click
from nemo_vfm.sparse.feature_batch import FeatureBatch
from nemo_vfm.sparse.jagged import Jagged
from nemo_vfm.sparse.tables.fused_tables import FusedTables
from nemo_vfm.sparse.tables.row_optimizer import RowWiseAdaGrad
from nemo_vfm.sparse.tables.table_spec import TableSpec

DENSE = 13
ROW_OPTIMIZER = RowWiseAdaGrad(lr=0.02, eps=1e-8)


@dataclass(frozen=True)
class Size:
    """Of the tables and of a batch."""

    samples: int
    ids: int
    tables: int = 26
    rows: int = 100_000
    width: int = 64

    def batch(self) -> FeatureBatch:
        """Random ids, so many of each feature in each sample."""
        numbers = torch.Generator().manual_seed(0)
        count, lengths = self.samples * self.ids, torch.full((self.samples,), self.ids)
        features = {
            f"c{at}": Jagged(torch.randint(0, self.rows, (count,), generator=numbers), lengths)
            for at in range(self.tables)
        }
        dense, click = (torch.rand(self.samples, n, generator=numbers) for n in (DENSE, 1))
        labels = {"click": (click[:, 0] < 0.3).float()}
        return FeatureBatch(0, torch.arange(self.samples), torch.ones(self.samples), dense, labels, features)


def fresh(batch: FeatureBatch) -> FeatureBatch:
    """Without the offsets that an earlier step has computed."""
    return replace(batch, features={name: Jagged(one.values_N, one.lengths_B) for name, one in batch.features.items()})


def engine_step(size: Size) -> Callable[[], object]:
    """Ours, as a recipe runs it."""
    rows = {f"c{at}": size.rows for at in range(size.tables)}
    build = partial(DLRM, dense=DENSE, bottom=[512, 256, size.width], top=[512, 256], width=size.width, rows=rows,
                    table_optimizer=ROW_OPTIMIZER)  # fmt: skip
    adamw = partial(torch.optim.AdamW, lr=1e-3)
    inputs = EngineInputs(build, Click(labels={"click": 1.0}), adamw, Precision("fp32"), 0, ParallelPlan())
    runner = TorchEngine().start(inputs)
    batch = size.batch().to(DEVICE)
    return lambda: runner.step([fresh(batch)])


def tables_step(size: Size) -> Callable[[], object]:
    """Our lookups and the update of rows alone."""
    batch = size.batch().to(DEVICE)
    specs = {name: TableSpec(size.rows, size.width, (name,)) for name in batch.features}
    tables = FusedTables(specs, ROW_OPTIMIZER).to(DEVICE)
    gradients = [torch.randn(size.samples, size.width, device=DEVICE) for _ in specs]

    def step() -> None:
        found = tables.lookup(fresh(batch).features)
        torch.autograd.backward(list(found.values()), gradients)
        tables.update(1.0)

    return step


class Bags(nn.Module):
    """The same network with torch's `EmbeddingBag`."""

    def __init__(self, size: Size, sparse: bool) -> None:
        super().__init__()
        self.bags = nn.ModuleList(
            nn.EmbeddingBag(size.rows, size.width, mode="sum", sparse=sparse) for _ in range(size.tables)
        )
        self.bottom = _perceptron(DENSE, 512, 256, size.width)
        self.top = nn.Sequential(
            _perceptron(size.width + size.tables * (size.tables + 1) // 2, 512, 256), nn.Linear(256, 1)
        )
        self.register_buffer("pairs", torch.tril_indices(size.tables + 1, size.tables + 1, -1))

    def forward(self, dense_BF: Tensor, ids: list[Tensor], begins: Tensor) -> Tensor:
        """Logits."""
        x = self.bottom(dense_BF)
        vectors = torch.stack([x, *(bag(one, begins) for bag, one in zip(self.bags, ids, strict=True))], 1)
        products = vectors @ vectors.transpose(1, 2)
        return self.top(torch.cat([x, products[:, self.pairs[0], self.pairs[1]]], 1))[:, 0]


def _perceptron(*sizes: int) -> nn.Sequential:
    return nn.Sequential(*(layer for i, o in pairwise(sizes) for layer in (nn.Linear(i, o), nn.ReLU())))


def bags_step(size: Size, sparse: bool) -> Callable[[], object]:
    """Forward, backward, clipping of the dense weights' gradients, and both optimizers."""
    with DEVICE:
        model = Bags(size, sparse)
    batch = size.batch().to(DEVICE)
    dense = [*model.bottom.parameters(), *model.top.parameters()]
    adamw = torch.optim.AdamW(dense, lr=1e-3, fused=True)
    adagrad = torch.optim.Adagrad(model.bags.parameters(), lr=0.02, eps=1e-8)  # torch's fused one is for CPUs alone
    ids = [one.values_N for one in batch.features.values()]
    begins = torch.arange(0, len(ids[0]), size.ids, device=DEVICE)

    def step() -> float:
        adamw.zero_grad(set_to_none=True)
        adagrad.zero_grad(set_to_none=True)
        loss = F.binary_cross_entropy_with_logits(model(batch.dense_BF, ids, begins), batch.labels["click"])
        loss.backward()
        nn.utils.clip_grad_norm_(dense, 1.0)
        adamw.step()
        adagrad.step()
        return float(loss.detach())

    return step


def measure(begin: Callable[[Size], Callable[[], object]], size: Size, count: int, profiled: bool) -> Figures:
    """Of a step that `begin` makes."""
    step = begin(size)
    found = timed(step, count, warm=3)
    return {**found, **(by_kind(step) if profiled else {})}


def main() -> None:
    """Each size by each side."""
    report = report_of(__doc__)
    sizes = [Size(64, 3, 4, 100, 16)] if report.quick else [Size(2048, 10), Size(65_536, 1), Size(65_536, 10)]
    sides = {
        "ours by the engine": engine_step,
        "our tables alone": tables_step,
        "bags, sparse": partial(bags_step, sparse=True),
        "bags, dense": partial(bags_step, sparse=False),
    }
    for size in sizes:
        for name, begin in sides.items():
            profiled = begin is engine_step and size.ids > 1
            work = partial(measure, begin, size, 2 if report.quick else 20, profiled)
            report.side(f"{size.samples} samples of {size.ids} ids, {name}", work)


if __name__ == "__main__":
    main()
