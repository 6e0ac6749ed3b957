"""Compares a training step on unique rows with one on a row a sample: same model, same batch, same update.

The model is a transformer over the history of clicks, items and topics added; all other features are pooled. Its size
is chosen so that the attention takes about 80 % of the plain step.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional as F

from benchmarks.deduplication.preprocessing import as_batch
from benchmarks.deduplication.session_data import GROUPS, LogShape
from nemo_vfm.models.recommenders.feature_input import Stage
from nemo_vfm.models.recommenders.history_transformer import HistoryTransformer
from nemo_vfm.recsys.click import Click
from nemo_vfm.sparse.feature_batch import FeatureBatch
from nemo_vfm.sparse.log_chunk import LogChunk
from nemo_vfm.sparse.row_deduplication import deduplicate
from nemo_vfm.sparse.tables.row_optimizer import RowWiseAdaGrad
from nemo_vfm.sparse.tables.row_storage import TouchedRows

ATTENDED, ROWS, LONGEST = "clicks", 10_000, 48
HISTORY = dict(zip(GROUPS[ATTENDED], ("item_00", "item_01"), strict=True))
STAGES: dict[str, dict[str, Stage]] = {
    "lookup": dict.fromkeys(GROUPS, "lookup"),
    "lookup and pooling": dict.fromkeys(GROUPS, "pool") | {ATTENDED: "lookup"},
    "lookup, pooling and attention": dict.fromkeys(GROUPS, "pool") | {ATTENDED: "attend"},
}
ADAGRAD = partial(torch.optim.Adagrad, lr=1e-3)


@dataclass
class Side:
    """A model, its batch, and what was measured."""

    model: HistoryTransformer
    batch: FeatureBatch
    make_optimizer: Callable[..., torch.optim.Optimizer] = ADAGRAD
    optimizer: torch.optim.Optimizer = field(init=False)
    wall_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.optimizer = self.make_optimizer(self.model.parameters())

    def loss(self) -> Tensor:
        """The sum over the batch."""
        task = Click(labels={"click": 1.0})
        prepared = task.prepare(self.batch, seed=0, training=True)
        return task.losses(self.model(batch=self.batch), prepared).sum()

    def step(self) -> None:
        """Forward, backward, update of rows and weights."""
        self.optimizer.zero_grad()
        self.loss().backward()  # type: ignore[no-untyped-call]
        self.model.tables.update(len(self.batch))
        self.optimizer.step()

    def timed(self, run: Callable[[], None]) -> None:
        """Measure a run."""
        wall, cpu = time.perf_counter(), time.process_time()
        run()
        self.wall_s.append(time.perf_counter() - wall)
        self.cpu_s.append(time.process_time() - cpu)


def model(hidden: int, batch: FeatureBatch, deduplicated: dict[str, Stage] | None = None) -> HistoryTransformer:
    """The same weights at every call, for the features of the batch."""
    torch.manual_seed(0)
    pooled = [name for name in batch.expand().features if name not in HISTORY]
    return HistoryTransformer(
        dense=0, history=HISTORY, longest=LONGEST, depth=1, heads=4, mlp_hidden=hidden, top=[512, 256],
        table_optimizer=RowWiseAdaGrad(lr=0.01), width=64, rows=dict.fromkeys(pooled, ROWS), deduplicated=deduplicated,
    )  # fmt: skip


def batch_of(shape: LogShape, size: int) -> FeatureBatch:
    """The first samples of a clustered log, deduplicated."""
    return deduplicated_batch(replace(shape, rows=ROWS).log().samples(0, size, clustered=True))


def deduplicated_batch(chunk: LogChunk) -> FeatureBatch:
    """All samples of a chunk, in whatever order."""
    grouped = {name for names in GROUPS.values() for name in names}
    plain = {name: rows for name, rows in chunk.features.items() if name not in grouped}
    return as_batch(chunk, plain, deduplicate(chunk.features, GROUPS))


def difference(unique: Side, plain: Side) -> float:
    """The largest of loss and gradients of weights and rows, relative to the largest number of the tensor.

    A tensor counts at least as a thousandth of the largest one: the gradient of keys' biases is 0 but for rounding. The
    networks compute in float64, and gradients of rows are summed in it; rows and what each lookup adds to them stay in
    float32. torch's layer norm adds the gradients of 200,000 places one after another, and in float32 that alone moves
    the plain side by 7e-5 (norm.bias, batch 4,096); sums of rows that occur thousands of times move by 1.2e-5.
    """
    for side in (unique, plain):
        side.model.double()
    ours, expected = _gradients(unique), _gradients(plain)
    for side in (unique, plain):
        side.optimizer.zero_grad()
        side.model.float()
    largest = {name: float(one.abs().max()) for name, one in expected.items()}
    floor = max(largest.values()) / 1000
    return max(float((ours[n] - one).abs().max()) / max(largest[n], floor) for n, one in expected.items())


def attention(side: Side) -> Callable[[], None]:
    """Forward and backward of the encoder alone, on the rows that the side gives it."""
    caught: dict[str, Tensor] = {}
    encoder = side.model.encoder
    handle = encoder.register_forward_hook(partial(_catch, caught))
    side.loss()
    handle.remove()
    side.model.tables.forget()
    history, places, out = caught["history"], caught["places"], caught["out"]
    given = torch.randn_like(out)

    def run() -> None:
        values = history.values_N.detach().requires_grad_()  # type: ignore[attr-defined]
        encoder(type(history)(values, history.lengths_B), places).backward(given)  # type: ignore[attr-defined]
        encoder.zero_grad()

    return run


def saved_bytes(side: Side) -> int:
    """Of what the forward pass keeps for the backward pass, each storage once."""
    # A tensor that a hook returns keeps its graph, which keeps it; a storage has none.
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage

    with saved_tensors_hooks(keep, lambda _: None):
        side.loss()
    own = {one.untyped_storage().data_ptr() for one in side.model.state_dict().values()}
    side.model.tables.forget()
    return sum(storage.nbytes() for place, storage in kept.items() if place not in own)


def _catch(caught: dict[str, object], _: nn.Module, inputs: tuple[object, ...], output: Tensor) -> None:
    caught["history"], caught["places"] = inputs
    caught["out"] = output


def _sums(touched: TouchedRows) -> Tensor:
    """Of the gradients of each row, in float64."""
    assert touched.weights_N is None
    return F.embedding_bag(touched.bags_N, touched.grads_GD.double(), touched.offsets, mode="sum",
                           include_last_offset=True)  # fmt: skip


def _gradients(side: Side) -> dict[str, Tensor]:
    """By name; those of rows that were looked up, row after row."""
    side.optimizer.zero_grad()
    loss = side.loss()
    loss.backward()  # type: ignore[no-untyped-call]
    found = {"loss": loss.detach()[None]}
    found |= {name: p.grad.clone() for name, p in side.model.named_parameters() if p.grad is not None}
    for storage in side.model.tables._storages:
        found[f"rows of width {storage.width}"] = torch.cat([_sums(touched) for touched in storage.touched_rows()])
    side.model.tables.forget()
    return found
