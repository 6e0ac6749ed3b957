"""Tests that our reader gives the tensors of files of torch.save."""

import collections

import pytest
import torch

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.models.convert.foreign import read_foreign
from tests.support.foreign_files import saved


@pytest.fixture
def keep(tmp_path):
    """Bytes or a value to save in, the path of the file out."""

    def write(value):
        path = tmp_path / "weights.ckpt"
        path.write_bytes(value if isinstance(value, bytes) else saved(value))
        return path

    return write


def same(found, expected):
    assert list(found) == list(expected)
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype and found[name].shape == tensor.shape, name
        assert torch.equal(found[name], tensor.detach()) or tensor.dtype == torch.float8_e4m3fn, name


def test_a_state_dict_is_read_as_torch_reads_it(keep):
    network = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.BatchNorm1d(5), torch.nn.LSTM(5, 2))
    same(read_foreign(keep(network.state_dict())).weights, network.state_dict())


DTYPES = (torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8,
          torch.bool, torch.uint16, torch.uint32, torch.uint64, torch.complex64, torch.float8_e4m3fn)  # fmt: skip


def test_every_dtype_and_layout_is_read(keep):
    state = {str(dtype): torch.arange(6).reshape(2, 3).to(dtype) for dtype in DTYPES}
    base = torch.randn(4, 6)
    state |= {"transposed": base.t(), "a slice": base[1:3, ::2], "scalar": torch.tensor(3.0), "none": torch.empty(0, 3),
              "parameter": torch.nn.Parameter(torch.randn(2))}  # fmt: skip
    found = read_foreign(keep(state)).weights
    same(found, state)
    assert torch.equal(found["torch.float8_e4m3fn"].float(), state["torch.float8_e4m3fn"].float())


def test_tied_weights_stay_tied(keep):
    weight = torch.randn(4, 4)
    found = read_foreign(keep({"a": weight, "b": weight})).weights
    assert found["a"].data_ptr() == found["b"].data_ptr()


def test_the_weights_of_a_lightning_checkpoint_are_found_and_the_rest_is_named(keep):
    checkpoint = {"epoch": 3, "global_step": 12, "state_dict": collections.OrderedDict(w=torch.ones(2)), "loops": [],
                  "optimizer_states": [{"state": {0: {"exp_avg": torch.zeros(2)}}}], "hyper_parameters": {"lr": 0.1},
                  "worst": float("inf")}  # fmt: skip
    found = read_foreign(keep(checkpoint))
    same(found.weights, {"w": torch.ones(2)})
    assert found.values == {"epoch": 3, "global_step": 12, "hyper_parameters.lr": 0.1}
    assert found.others == ("optimizer_states",)


def test_where_the_weights_are_must_be_clear(keep):
    path = keep({"model": {"w": torch.ones(2)}, "module": {"w": torch.zeros(2)}, "ema": {"deep": {"w": torch.ones(1)}}})
    with pytest.raises(UserError, match="say which with --key: it has model, module, ema"):
        read_foreign(path)
    same(read_foreign(path, key="module").weights, {"w": torch.zeros(2)})
    same(read_foreign(path, key="ema.deep").weights, {"w": torch.ones(1)})
    with pytest.raises(UserError, match="has no 'nothing'; it has model, module, ema"):
        read_foreign(path, key="nothing")


class Settings:
    """A class of the user's own, pickled beside the weights."""


def test_code_beside_the_weights_is_refused_by_name_or_left_out_on_request(keep):
    settings = Settings()
    settings.depth = 3
    path = keep({"state_dict": {"w": torch.ones(2)}, "hyper_parameters": settings, "epoch": 1})
    with pytest.raises(DataError, match=r"names .*Settings, which is code, not data; nothing was run"):
        read_foreign(path)
    found = read_foreign(path, leave_out=True)
    same(found.weights, {"w": torch.ones(2)})
    assert found.values == {"epoch": 1} and [name.rpartition(".")[2] for name in found.others] == ["Settings"]


def test_an_object_among_the_weights_is_never_left_out(keep):
    with pytest.raises(DataError, match="'s' among the weights is not a tensor but a LeftOut"):
        read_foreign(keep({"state_dict": {"w": torch.ones(2), "s": Settings()}}), leave_out=True)
