"""Tests DCNv2 against its equation, and the numbers of MLPerf's."""

from pathlib import Path

import torch
import yaml

from nemo_vfm.models.recommenders.dcn_v2 import CrossLayers, DCNv2
from nemo_vfm.sparse.tables.row_optimizer import RowWiseAdaGrad
from tests.support.session_batches import session_batch
from tests.support.small_recommenders import small

CONF = Path(__file__).parents[3] / "conf" / "model"


def test_the_cross_layers_are_the_equation():
    torch.manual_seed(0)
    cross, x = CrossLayers(6, layers=2, rank=3), torch.randn(4, 6)
    expected = x
    for down, up in zip(cross.down, cross.up, strict=True):
        matrix = up.weight @ down.weight
        expected = x * (expected @ matrix.T + up.bias) + expected
    torch.testing.assert_close(cross(x), expected)


def test_mlperfs_model_has_its_rows_and_products():
    given = yaml.safe_load((CONF / "dcnv2_mlperf.yaml").read_text())
    assert given.pop("_target_") == f"{DCNv2.__module__}.DCNv2"
    settings = given.pop("table_optimizer")
    assert settings.pop("_target_") == f"{RowWiseAdaGrad.__module__}.RowWiseAdaGrad"
    with torch.device("meta"):
        model = DCNv2(**given, table_optimizer=RowWiseAdaGrad(**settings))
    rows = model.state_dict()
    assert sum(len(rows[f"tables.{name}.weight"]) for name in given["rows"]) == 204_184_588
    assert len(given["rows"]) == 26
    multi_hot = [3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1]
    inputs = {"dense_BF": (1, 13)} | {
        shape: size
        for name, ids in zip(given["rows"], multi_hot, strict=True)
        for shape, size in ((f"{name}.values", (ids,)), (f"{name}.lengths", (1,)))
    }
    ops = model.ops(inputs)
    assert sum(op.flops for op in ops) == 2 * (13 * 512 + 512 * 256 + 256 * 128 + 3 * 2 * 3456 * 512
                                               + 3456 * 1024 + 1024**2 + 1024 * 512 + 512 * 256 + 256)  # fmt: skip
    assert sum(op.bytes for op in ops) == 214 * 128 * 4


def test_a_model_without_dense_numbers_takes_them_out_of_its_first_vector_and_its_cost():
    bare = small(DCNv2, dense=0, bottom=[])
    batch = session_batch(dense=0)
    assert bare(batch).shape == (len(batch), 2) and bare.cross.size == small(DCNv2).cross.size - 8
    inputs = {"dense_BF": (5, 0)}
    assert sum(op.flops for op in bare.ops(inputs)) < sum(op.flops for op in small(DCNv2).ops({"dense_BF": (5, 3)}))
