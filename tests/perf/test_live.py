"""Compares what a trace counts with what torch's own fake tensors say."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves

from nemo_vfm.perf import traced
from nemo_vfm.perf.live import LiveBytes
from nemo_vfm.perf.model_facts import facts
from nemo_vfm.perf.traced import BlockSplit
from tests.perf.test_memory import MODELS

CUTS = [
    BlockSplit(), BlockSplit(gathered=True), BlockSplit(narrow=False), BlockSplit(ring=True, gathered=True),
    BlockSplit(tensor=2),
    BlockSplit(tensor=2, sequence=True, gathered=True),
]  # fmt: skip


class FakeLive(LiveBytes):
    """Counts the same of torch's fake tensors."""

    def __enter__(self) -> "FakeLive":
        self._stack = ExitStack()
        self._stack.enter_context(FakeTensorMode())
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._stack.close()

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # fmt: skip
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if self._counting and isinstance(tensor, Tensor):
                self._on_alloc(tensor)
        return made


def both(name: str, cut: BlockSplit, single: bool, monkeypatch: pytest.MonkeyPatch) -> list[traced.AffineMemory]:
    build, shapes = MODELS[name]
    with torch.device("meta"):
        model = facts(build(), shapes).model
    ours = traced.trace_step(model, shapes, cut, tokens=1024, single=single)
    import_module("torch._dynamo")  # fake tensors import modules of it, which its stand-in does not have
    monkeypatch.setattr(traced, "LiveBytes", FakeLive)
    return [ours, traced.trace_step(model, shapes, cut, tokens=1024, single=single)]


@pytest.mark.parametrize(("name", "cut"), [("gpt", CUTS[0]), ("gpt", CUTS[-1]), ("dit", CUTS[3])], ids=str)
def test_a_trace_counts_every_byte_that_fake_tensors_count(name: str, cut: BlockSplit, monkeypatch: pytest.MonkeyPatch):
    ours, fake = both(name, cut, True, monkeypatch)
    assert ours == fake and max(max(line) for line in ours.lines["block"]) > 0


@pytest.mark.soak
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("cut", CUTS, ids=str)
@pytest.mark.parametrize("single", [True, False])
def test_every_trace_counts_every_byte_that_fake_tensors_count(
    name: str, cut: BlockSplit, single: bool, monkeypatch: pytest.MonkeyPatch
):
    ours, fake = both(name, cut, single, monkeypatch)
    assert ours == fake


def test_a_tensor_without_numbers_is_refused_elsewhere():
    with LiveBytes():
        one = torch.empty(3)
        assert one.device.type == "cpu" and (one + 1).shape == (3,)
    with pytest.raises(AssertionError, match="outside of Live"):
        _ = one + 1
