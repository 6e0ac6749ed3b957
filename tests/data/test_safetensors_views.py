"""Tests that safetensors bytes are read in place, and that damaged ones raise a DataError."""

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from nemo_vfm.core.errors import DataError
from nemo_vfm.data.shards import safetensors_views
from nemo_vfm.data.shards.safetensors_views import TensorView, stored_tensors


def tensor(stored: TensorView) -> torch.Tensor:
    return torch.frombuffer(bytearray(stored.data.tobytes()), dtype=stored.dtype).reshape(stored.shape)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool])
def test_what_safetensors_wrote_is_read(dtype: torch.dtype) -> None:
    saved = {"a": torch.arange(24).reshape(2, 3, 4).to(dtype), "b": torch.ones(5, dtype=dtype)}
    found = stored_tensors(save(saved))
    assert found.keys() == saved.keys()
    assert all(torch.equal(tensor(found[name]), saved[name]) for name in saved)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_nan_and_infinity_are_seen(dtype: torch.dtype, bad: float) -> None:
    fine = torch.linspace(-300, 300, 64, dtype=dtype)
    assert stored_tensors(save({"x": fine}))["x"].is_finite()
    fine[17] = bad
    assert not stored_tensors(save({"x": fine}))["x"].is_finite()


@pytest.mark.parametrize("place", [0, 7, 8, 18])
def test_a_nan_is_seen_in_any_of_the_pieces_that_are_looked_at(monkeypatch: pytest.MonkeyPatch, place: int) -> None:
    monkeypatch.setattr(safetensors_views, "_PIECE", 32)
    numbers = torch.zeros(19)
    assert stored_tensors(save({"x": numbers}))["x"].is_finite()
    numbers[place] = torch.nan
    assert not stored_tensors(save({"x": numbers}))["x"].is_finite()


def with_header(fields: object, content: bytes = b"\x00" * 16) -> bytes:
    header = json.dumps(fields).encode()
    return len(header).to_bytes(8, "little") + header + content


@pytest.mark.parametrize(
    "data",
    [
        b"", b"short", b"\xff" * 8 + b"{}", with_header([]), with_header({"x": 3}),
        with_header({"x": {"dtype": "F32", "shape": [5], "data_offsets": [0, 16]}}),
        with_header({"x": {"dtype": "F32", "shape": [4], "data_offsets": [4, 20]}}),
        with_header({"x": {"dtype": "F32", "shape": [-4], "data_offsets": [0, 16]}}),
        with_header({"x": {"dtype": "F32", "shape": [4], "data_offsets": [-16, 0]}}),
        with_header({"x": {"dtype": "OBJECT", "shape": [4], "data_offsets": [0, 16]}}),
        with_header({"x": {"dtype": "F32", "shape": "4", "data_offsets": [0, 16]}}),
        (60_000).to_bytes(8, "little") + b"[" * 60_000,
    ],
)  # fmt: skip
def test_damaged_headers_are_data_errors(data: bytes) -> None:
    with pytest.raises(DataError):
        stored_tensors(data)


@settings(max_examples=60)
@given(st.integers(0, 200), st.integers(0, 255), st.integers(0, 200))
def test_damaged_bytes_give_whole_tensors_or_a_data_error(position: int, value: int, cut: int) -> None:
    data = bytearray(save({"x": torch.zeros(4, 5), "y": torch.zeros(3)}))
    data[position % len(data)] = value
    try:
        found = stored_tensors(bytes(data[: len(data) - cut]))
    except DataError:
        return
    for stored in found.values():
        assert len(stored.data) == stored.dtype.itemsize * torch.Size(stored.shape).numel()
