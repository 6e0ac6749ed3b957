"""Trains one model on batches of whole sessions and on batches of samples in random order, and compares the AUC.

Sessions of a clustered batch stand together, so that its rows repeat; which batch comes when is random in both. Both
are tested on the same later fifth of the log.
"""

from functools import partial

import torch
from torch import Tensor

from benchmarks.deduplication.session_data import ROW_GROUPS, LogShape
from benchmarks.deduplication.training import HISTORY, LONGEST, STAGES, Side, deduplicated_batch
from nemo_vfm.metrics.ranking import auc
from nemo_vfm.models.recommenders.history_transformer import HistoryTransformer
from nemo_vfm.sparse.feature_batch import FeatureBatch
from nemo_vfm.sparse.log_chunk import LogChunk
from nemo_vfm.sparse.tables.row_optimizer import RowWiseAdaGrad

ROWS, WIDTH = 200, 8


def compared(samples: int, batch_size: int, seed: int) -> dict[str, float]:
    """AUC on held-out samples of the teacher, and after training on either order.

    Args:
        samples: of the log, of which four fifths are learned once.
        batch_size: samples of a batch.
        seed: of log, weights and order.
    """
    log = LogShape(samples // ROW_GROUPS, rows=ROWS).log(seed)
    chunk = log.samples(0, log.num_samples, clustered=True)
    learned, held_out = chunk.rows(0, len(chunk) * 4 // 5), chunk.rows(len(chunk) * 4 // 5, len(chunk))
    labels = held_out.labels["click"]
    mixed = learned.select(torch.randperm(len(learned), generator=torch.Generator().manual_seed(seed)))
    orders = {"clustered": learned, "shuffled": mixed}
    scores = {name: _scores(_trained(one, batch_size, seed), held_out) for name, one in orders.items()}
    scores["teacher"] = held_out.labels["teacher"]
    return {f"auc_{name}": auc(score_N, labels) for name, score_N in scores.items()}


def _trained(chunk: LogChunk, batch_size: int, seed: int) -> HistoryTransformer:
    torch.manual_seed(seed)
    model = HistoryTransformer(
        dense=0, history=HISTORY, longest=LONGEST, depth=1, heads=2, mlp_hidden=2 * WIDTH, top=[32],
        table_optimizer=RowWiseAdaGrad(lr=0.2), width=WIDTH,
        rows=dict.fromkeys([name for name in chunk.features if name not in HISTORY], ROWS),
        deduplicated=STAGES["lookup, pooling and attention"],
    )  # fmt: skip
    order = torch.randperm(len(chunk) // batch_size, generator=torch.Generator().manual_seed(seed))
    side = Side(model, _batch(chunk, batch_size, 0), partial(torch.optim.AdamW, lr=5e-3))
    for number in order.tolist():
        side.batch = _batch(chunk, batch_size, number)
        side.step()
    return model


@torch.no_grad()
def _scores(model: HistoryTransformer, chunk: LogChunk) -> Tensor:
    return torch.cat([model(batch=_batch(chunk, 2_048, n))[:, 0] for n in range(-(-len(chunk) // 2_048))])


def _batch(chunk: LogChunk, size: int, number: int) -> FeatureBatch:
    return deduplicated_batch(chunk.rows(number * size, min((number + 1) * size, len(chunk))))
