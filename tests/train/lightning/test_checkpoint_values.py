"""Tests that what a checkpoint holds can be read back, or is left out, or is refused when the first is written."""

from argparse import Namespace
from collections import OrderedDict, deque
from enum import Enum, IntFlag
from functools import partial
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch.demos.boring_classes import BoringModel
from omegaconf import OmegaConf

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.types.job import Run
from nemo_vfm.train.lightning.checkpoint_values import read
from nemo_vfm.train.lightning.fit_settings import TrainerOptions
from nemo_vfm.train.lightning.plugins import OwnCheckpoints
from nemo_vfm.train.lightning_fit import LightningFit


class Colour(Enum):
    RED = "red"


class Bits(IntFlag):
    A, B = 1, 2


class Thing:
    """Nobody's value."""


KEPT: dict[str, Any] = {
    "rate": np.float32(0.1), "size": np.int64(3), "stamp": np.datetime64("2026-01-01"), "weights": np.arange(6.0),
    "none": np.zeros((2, 0)), "names": np.array(["a", "b"]), "data_dir": Path("/data/x"), "args": Namespace(a=1, b=[2]),
    "order": OrderedDict(b=1, a=2), "colour": Colour.RED, "bits": Bits.A | Bits.B, "places": frozenset({1, 2}),
    "seen": {3}, "text": "x", "nothing": None, "pair": (1, 2.5), "tensor": torch.arange(3),
}  # fmt: skip
LEFT_OUT: dict[str, Any] = {
    "net": torch.nn.Linear(2, 2), "optimizer": partial(torch.optim.Adam, lr=0.1), "call": lambda x: x,
    "thing": Thing(), "inside": {"deep": [Thing()]},
}  # fmt: skip


class Net(BoringModel):
    """Keeps its arguments as most people write it, and adds something to its checkpoints."""

    def __init__(self, added: object = None, rate: Any = 0.1, **options: Any) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.added = added

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.layer.parameters(), lr=self.hparams["rate"], momentum=0.5)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        if self.added is not None:
            checkpoint["mine"] = {"first": 1, "list": [0, self.added]}


def train(folder: Path, **arguments: Any) -> float:
    """Two epochs of four steps, with a checkpoint after each step."""
    options = TrainerOptions(max_epochs=2, limit_train_batches=4, limit_val_batches=0)
    job = LightningFit(module=partial(Net, **arguments), accelerator="cpu", trainer=options, every_steps=1)
    return job.run(Run(folder)).figures["steps"]


def newest(folder: Path) -> dict[str, Any]:
    return OwnCheckpoints(folder).load_checkpoint(max((folder / "checkpoints").glob("step-*.ckpt")))


def test_hyperparameters_come_back_as_they_were_and_those_that_could_not_are_left_out_in_one_line(
    tmp_path: Path, capfd
) -> None:
    config = OmegaConf.create({"depth": 2, "widths": [1, "${depth}"], "inner": {"a": None}})
    assert train(tmp_path, config=config, **KEPT, **LEFT_OUT) == 8
    found = newest(tmp_path)["hyper_parameters"]
    assert found.keys() == {"added", "config", *KEPT} and found["config"] == {
        "depth": 2,
        "widths": [1, 2],
        "inner": {"a": None},
    }
    for name, value in KEPT.items():
        assert type(found[name]) is type(value) and np.array_equal(found[name], value), name
    said = [line for line in capfd.readouterr().err.splitlines() if "left out of checkpoints" in line]
    (line,) = said
    left_out = LEFT_OUT.keys() - {"call"}  # which Lightning itself leaves out
    assert all(f"Net.{name}" in line for name in left_out) and "Net.rate" not in line
    max((tmp_path / "checkpoints").glob("step-*.ckpt")).unlink()
    assert train(tmp_path, config=config, **KEPT, **LEFT_OUT) == 8, "and it resumes"


@pytest.mark.parametrize(
    "added",
    [Thing(), torch.nn.Linear(1, 1), lambda x: x, Thing, deque([1])],
    ids=["object", "network", "lambda", "class", "deque"],
)
def test_what_cannot_be_read_back_is_refused_at_the_first_save_with_its_key_and_class(tmp_path, added: object) -> None:
    with pytest.raises(UserError, match=r"would hold mine\.list\.1 \(a \w+(\.\w+)*\), which cannot be read") as raised:
        train(tmp_path, added=added)
    assert "\x1b" not in str(raised.value) and not list((tmp_path / "checkpoints").iterdir())


def test_what_numpy_and_others_put_into_a_checkpoint_comes_back(tmp_path: Path) -> None:
    train(tmp_path, added=dict(KEPT))
    found = newest(tmp_path)["mine"]["list"][1]
    assert all(np.array_equal(found[name], value) for name, value in KEPT.items())


def test_a_checkpoint_with_objects_of_other_classes_is_not_read(tmp_path: Path) -> None:
    train(tmp_path)
    path = max((tmp_path / "checkpoints").glob("step-*.ckpt"))
    torch.save({**newest(tmp_path), "own": Thing(), **KEPT}, path)
    with pytest.raises(UserError, match=r"holds more than tensors and plain values \([\w.]+Thing\), so") as raised:
        train(tmp_path)
    assert "\x1b" not in str(raised.value)


class _Reduced:
    """Is pickled as a hostile file would have it: a call, and what is then made of its result."""

    def __init__(self, *reduced: Any) -> None:
        self.reduced = reduced

    def __reduce__(self) -> Any:
        return self.reduced


def _bytes_as_pointers(code: str) -> _Reduced:
    """An array that takes bytes for addresses of objects: numpy believes what a pickle says of its types."""
    fields = (3, "|", None, ("a",), {"a": (np.dtype(code), 0)}, 8, 1, 0)
    dtype = _Reduced(np.dtype, (code, False, True), fields)
    reconstruct = np.zeros(1).__reduce__()[0]
    return _Reduced(reconstruct, (np.ndarray, (0,), b"b"), (1, (1,), dtype, False, b"A" * 8))


@pytest.mark.parametrize(
    "hostile",
    [_bytes_as_pointers("f8"), _bytes_as_pointers("V8"), np.array([Thing], object),
     _Reduced(Colour, ("red",), (None, {"_value_": "blue"})), _Reduced(Enum, ("New", ("A",)))],
    ids=["fields of numbers", "fields", "objects", "an enum's member", "an enum"],
)  # fmt: skip
def test_a_checkpoint_changes_no_enum_and_gives_numpy_no_addresses(tmp_path: Path, hostile: object) -> None:
    file = tmp_path / "hostile.ckpt"
    torch.save({"value": hostile}, file)
    with pytest.raises(UnpicklingError):
        read(file)
    assert Colour.RED.value == "red"


def test_what_a_package_lets_torch_read_of_numpy_changes_nothing(tmp_path: Path) -> None:
    """Megatron's import lets torch read numpy's own types, for the whole process."""
    own, file = np.arange(3.0), tmp_path / "a.ckpt"
    of_numpy = [np.dtype, np.ndarray, type(own.dtype), own.__reduce__()[0]]
    with torch.serialization.safe_globals([*of_numpy, Thing]):
        torch.save({"array": own, "thing": Thing()}, file)
        found = read(file)
        assert (found["array"] == own).all() and isinstance(found["thing"], Thing), "a class of the user's is let in"
        torch.save({"value": _bytes_as_pointers("f8")}, file)
        with pytest.raises(UnpicklingError):
            read(file)
        assert set(of_numpy) <= set(torch.serialization.get_safe_globals())


@pytest.mark.parametrize("code", ["?", "<i2", ">f4", "c16", "S3", "<U2", "M8[2h]", "m8", "M8"])
def test_arrays_and_scalars_of_numpy_come_back_in_every_order_and_can_be_written_to(tmp_path: Path, code: str) -> None:
    array = np.asfortranarray(np.ones((2, 3)).astype(np.int64).astype(code))
    value = {"here": [array, (array[0, 0], {"n": Namespace(a=array[:, :0])})]}
    torch.save(value, tmp_path / "a.ckpt")
    (found, (scalar, below)) = read(tmp_path / "a.ckpt")["here"]
    assert type(found) is np.ndarray and found.dtype == array.dtype and (found == array).all()
    assert found.flags.writeable and found.flags.f_contiguous
    assert type(scalar) is type(array[0, 0]) and scalar == array[0, 0]
    assert below["n"].a.shape == (2, 0) and below["n"].a.dtype == array.dtype
