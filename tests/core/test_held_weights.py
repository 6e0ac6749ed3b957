"""Tests that every network that parts hold is counted, and each once."""

from dataclasses import dataclass
from types import SimpleNamespace

from torch import nn

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.types.held_weights import HeldWeights, held_below


@dataclass(frozen=True, slots=True)
class Encoder:
    name: str

    def held_weights(self) -> HeldWeights:
        if self.name == "later":
            raise UserError("later is not a folder")
        return HeldWeights(self.name, 10)


@dataclass(frozen=True, slots=True)
class Pipeline:
    encoder: object


def test_what_is_held_at_any_depth_counts_and_equal_weights_count_once() -> None:
    shared = Encoder("a")
    task = SimpleNamespace(encoder=shared, others={"x": [Pipeline(Encoder("b"))]}, teacher=nn.Linear(3, 2), size=3)
    task.itself = task
    found = held_below({"task": task, "callbacks": (Pipeline(shared), Pipeline(Encoder("a")), Encoder("later"))})
    assert found.weights == {"a": 10, "b": 10, "Linear at task.teacher": 4 * 8} and found.num_bytes == 52
    assert found.unknown == {"callbacks.2": "later is not a folder"}
    assert found.notes() == ["callbacks.2 holds a network on each GPU, too, of unknown size: later is not a folder"]


class Late:
    """Knows its parts once its folder is there."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def late_parts(self) -> dict[str, object]:
        if self.folder == "later":
            raise UserError("later is not a folder")
        return {"encoder": Encoder(self.folder)}


def test_parts_that_follow_from_a_folder_are_asked_for() -> None:
    found = held_below({"task": SimpleNamespace(pipeline=Late("there")), "callback": Pipeline(Late("later"))})
    assert found.weights == {"there": 10} and found.unknown == {"callback.encoder": "later is not a folder"}
