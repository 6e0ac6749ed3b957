"""Tests that tables learn what FBGEMM's table-batched embedding learns by exact row-wise AdaGrad on a CPU."""

import pytest
import torch

from nemo_vfm.models.convert.torchrec_tables import load_torchrec
from nemo_vfm.sparse.jagged import Jagged
from nemo_vfm.sparse.tables import row_kernels
from nemo_vfm.sparse.tables.fused_tables import FusedTables
from nemo_vfm.sparse.tables.row_optimizer import RowWiseAdaGrad
from nemo_vfm.sparse.tables.table_spec import TableSpec
from tests.support.random_features import random_jagged

pytest.importorskip("fbgemm_gpu", reason="FBGEMM has an environment of its own: make torchrec")

ROWS, WIDTH, BATCH, STEPS, LR, EPS = {"a": 7, "b": 60, "c": 900}, 16, 64, 20, 0.05, 1e-8


class Peer:
    """FBGEMM's tables, which update in backward."""

    def __init__(self):
        from fbgemm_gpu.split_embedding_configs import EmbOptimType
        from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
        from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
            ComputeDevice,
            SplitTableBatchedEmbeddingBagsCodegen,
        )

        specs = [(rows, WIDTH, EmbeddingLocation.HOST, ComputeDevice.CPU) for rows in ROWS.values()]
        self.tables = SplitTableBatchedEmbeddingBagsCodegen(
            specs, optimizer=EmbOptimType.EXACT_ROWWISE_ADAGRAD, learning_rate=LR, eps=EPS
        )
        self.tables.init_embedding_weights_uniform(-0.5, 0.5)

    def weights(self):
        return {f"embedding_bags.{name}.weight": rows_RD.detach()
                for name, rows_RD in zip(ROWS, self.tables.split_embedding_weights(), strict=True)}  # fmt: skip

    def state(self):
        return {f"{name}.momentum1": states[0].flatten()
                for name, states in zip(ROWS, self.tables.split_optimizer_states(), strict=True)}  # fmt: skip

    def step(self, features):
        whole = Jagged.cat([*features.values()])
        out_BF = self.tables(whole.values_N, whole.offsets, whole.weights_N)
        (out_BF**3).sum().backward()


def batch(step, weighted):
    return {name: random_jagged(rows, BATCH, 10 * step + seed, 12, weighted)
            for seed, (name, rows) in enumerate(ROWS.items())}  # fmt: skip


def trained(peer, own, steps, weighted):
    for step in steps:
        peer.step(batch(step, weighted))
        sum((out**3).sum() for out in own.lookup(batch(step, weighted)).values()).backward()
        own.update(1.0)


def ours(peer):
    tables = FusedTables(
        {name: TableSpec(rows, WIDTH, (name,)) for name, rows in ROWS.items()}, RowWiseAdaGrad(LR, EPS)
    )
    load_torchrec(tables, peer.weights(), peer.state())
    return tables


def require_close(peer, own):
    state = own.state()
    for name, (rows, sums) in zip(ROWS, zip(peer.weights().values(), peer.state().values(), strict=True), strict=True):
        torch.testing.assert_close(state[f"{name}.weight"], rows, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(state[f"{name}.sum"], sums, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kernels", ["numba", "torch"])
@pytest.mark.parametrize("weighted", [False, True])
def test_twenty_steps_with_duplicates_give_the_rows_of_fbgemm(monkeypatch, weighted, kernels):
    if kernels == "torch":
        monkeypatch.setattr(row_kernels, "numba_usable", lambda tensor: False)
    torch.manual_seed(0)
    peer = Peer()
    own, before = ours(peer), peer.weights()["embedding_bags.a.weight"].clone()
    trained(peer, own, range(STEPS), weighted)
    require_close(peer, own)
    assert (peer.weights()["embedding_bags.a.weight"] - before).abs().min() > 1e-4


def test_a_run_of_fbgemm_goes_on_here_with_its_state():
    torch.manual_seed(0)
    peer = Peer()
    trained(peer, ours(peer), range(5), False)
    continued = ours(peer)
    fresh = FusedTables(continued.tables, RowWiseAdaGrad(LR, EPS))
    load_torchrec(fresh, peer.weights())
    trained(peer, continued, range(5, 10), False)
    require_close(peer, continued)
    trained(Peer(), fresh, range(5, 10), False)
    assert not torch.allclose(fresh.state()["a.weight"], continued.state()["a.weight"], atol=1e-3)
