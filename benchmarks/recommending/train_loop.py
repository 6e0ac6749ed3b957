"""Compares training DLRM by `Train`, from a feature table on disk, with its bare step in a plain loop.

The model, its tables, the optimizers, batch size and clipping are those of recipes/recommendation/dlrm_teacher.yaml.
The bare loop has the same batches in memory: forward, backward, clipping by the norm of all gradients, update of rows
and weights, and nothing else. `Train` reads, checks, shuffles and cuts the table, and writes metrics at each step, as
in the recipe; its first steps, validation and checkpoints are outside of the window.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

from nemo_vfm.core.duration import Duration
from nemo_vfm.core.precision import Precision
from nemo_vfm.core.types.job import Run
from nemo_vfm.models.recommenders.dlrm import DLRM
from nemo_vfm.parallel.engine.torch_engine import TorchEngine
from nemo_vfm.recsys.click import Click
from nemo_vfm.recsys.feature_table_data import FeatureTableData
from nemo_vfm.recsys.make_sessions import MakeSessions
from nemo_vfm.recsys.sessions.id_feature import IdFeature
from nemo_vfm.recsys.sessions.session_log import SessionLog
from nemo_vfm.recsys.sessions.teacher import Teacher
from nemo_vfm.sparse.feature_batch import FeatureBatch
from nemo_vfm.sparse.jagged import Jagged
from nemo_vfm.sparse.tables.row_optimizer import RowWiseAdaGrad
from nemo_vfm.train.callbacks.checkpointing import SaveCheckpoints
from nemo_vfm.train.job import Train
from nemo_vfm.train.loop import Loop
from nemo_vfm.train.state.train_state import TrainState

SIZES = [1_000] * 16 + [2_000] * 4 + [4_000] * 2 + [6_000] * 2 + [10_000] * 2
ROWS = {f"c{number}": rows for number, rows in enumerate(SIZES, 1)}
DENSE, CLIP_NORM, WARM = ("d1", "d2", "d3", "d4"), 1.0, 10
OPTIMIZER = partial(torch.optim.AdamW, lr=5e-3, betas=(0.9, 0.99))


@dataclass
class LoopTimes:
    """Seconds of each round's window."""

    wall_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)

    def begin(self) -> None:
        """A window opens."""
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def end(self) -> None:
        """It closes."""
        self.wall_s.append(time.perf_counter() - self._wall)
        self.cpu_s.append(time.process_time() - self._cpu)


@dataclass
class Window:
    """A callback that times the steps between two."""

    steps: int
    times: LoopTimes

    def on_step(self, fit: TrainState) -> None:
        """Nothing is written at the steps inside but metrics: the checkpoint comes after the last."""
        if fit.step == WARM:
            self.times.begin()
        elif fit.step == WARM + self.steps:
            self.times.end()


def write_log(folder: Path, samples: int) -> None:
    """A feature table of the recipe's features."""
    features = {name: IdFeature(rows=rows) for name, rows in ROWS.items()}
    teacher = Teacher(auc=0.85, rate=0.3, single=["c1"], dense=["d1"], pairs_share=0.0, dense_share=0.1)
    log = SessionLog(
        num_samples=samples, samples_per_session=1, lengths="fixed", features=features, dense=DENSE, teacher=teacher
    )
    MakeSessions(log=log).run(Run(folder, seed=0))


def model() -> nn.Module:
    """The recipe's, of the seed that torch has."""
    rows = RowWiseAdaGrad(lr=0.3, eps=1e-8, weight_decay=1e-4)
    return DLRM(dense=len(DENSE), bottom=[64, 16], top=[64], width=16, rows=ROWS, table_optimizer=rows)


def data(folder: Path, batch_size: int) -> FeatureTableData:
    """Shuffled, and read ahead by one thread, as the recipe has it."""
    return FeatureTableData(folder=folder / "table", batch_size=batch_size, order="shuffled", num_workers=1)


def by_train(folder: Path, batch_size: int, steps: int, run: Path, times: LoopTimes) -> None:
    """A whole training, of which the steps after the first ones are timed."""
    Train(
        model=model, data=data(folder, batch_size), task=Click(labels={"click": 1.0}), optimizer=OPTIMIZER,
        loop=Loop(duration=Duration(WARM + steps + 1, "steps"), checkpoint=SaveCheckpoints(every_steps=10**6)),
        engine=TorchEngine(clip_norm=CLIP_NORM, clip="all"), precision=Precision("fp32"),
        callbacks={"window": Window(steps, times)},
    ).run(Run(run, seed=0))  # fmt: skip


def batches(folder: Path, batch_size: int, steps: int) -> list[FeatureBatch]:
    """Those that `by_train` sees, in memory."""
    source = data(folder, batch_size)
    source.start(seed=0, first_batch=0)
    return list(islice(source.train_dataloader(), WARM + steps))  # type: ignore[arg-type]


def by_hand(given: Sequence[FeatureBatch], times: LoopTimes) -> None:
    """The same steps in a plain loop."""
    torch.manual_seed(0)
    bare = model()
    optimizer = OPTIMIZER(bare.parameters())
    fresh = [replace(one, features={name: Jagged(ids.values_N, ids.lengths_B) for name, ids in one.features.items()})
             for one in given]  # without the offsets that another round has computed  # fmt: skip
    for number, batch in enumerate(fresh):
        if number == WARM:
            times.begin()
        step(bare, optimizer, batch)
    times.end()


def step(bare: nn.Module, optimizer: torch.optim.Optimizer, batch: FeatureBatch) -> None:
    """Clipped by the norm of all gradients, those of rows included."""
    optimizer.zero_grad()
    logit_B, weight = bare(batch=batch)[:, 0], float(len(batch))
    binary_cross_entropy_with_logits(logit_B, batch.labels["click"]).mul(weight).backward()  # type: ignore[no-untyped-call]
    gradients = [one.grad for one in bare.parameters() if one.grad is not None]
    torch._foreach_div_(gradients, weight)
    squares = nn.utils.get_total_norm(gradients).square() + bare.tables.squared_norm(weight)
    factor = min(1.0, CLIP_NORM / (float(squares) ** 0.5 + 1e-6))
    torch._foreach_mul_(gradients, factor)
    bare.tables.update(weight, factor)
    optimizer.step()
