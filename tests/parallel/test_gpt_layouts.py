"""Tests that every axis gives a language model the losses and gradients of one device, packed, tied and grouped too."""

from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.precision import Precision
from nemo_vfm.core.seed import generator
from nemo_vfm.core.types.batch import Batch
from nemo_vfm.core.types.task import ModelInputs
from nemo_vfm.models.gpt import GPT
from nemo_vfm.parallel.apply.apply_parallelism import require_divisible
from nemo_vfm.parallel.checkpoint import checkpoint
from nemo_vfm.parallel.checkpoint.checkpoint_ranks import gather_group
from nemo_vfm.parallel.engine import model_start
from nemo_vfm.parallel.engine.step_runner import EngineInputs
from nemo_vfm.parallel.engine.torch_engine import TorchEngine
from nemo_vfm.parallel.layers import linear_token_losses, parallel_attention, vocab_parallel_loss
from nemo_vfm.parallel.plan.plan import ParallelPlan
from tests.support.combinations import cases
from tests.support.layouts import own, whole
from tests.support.ranks import on_ranks

pytestmark = pytest.mark.cluster  # several ranks

WORDS, LENGTH = 96, 32
LLAMA: dict[str, Any] = {"groups": 4, "qk_norm": True}
TIED: dict[str, Any] = {"groups": 8, "tied": True, "qkv_bias": True}
#: Fewer heads of keys and values than tensor ranks: 1 of them, and 2.
SINGLE: dict[str, Any] = {"groups": 1, "qkv_bias": True, "qk_norm": True}
PAIR: dict[str, Any] = {"groups": 2, "qk_norm": True}
NEMOTRON: dict[str, Any] = {"groups": 4, "activation": "squared_relu", "norm": "layernorm1p"}
SEQUENCE: dict[str, Any] = {"tensor": 2, "sequence": True}
PIPELINE: dict[str, Any] = {"pipeline": 2, "microbatches": 2}
INTERLEAVED: dict[str, Any] = {**PIPELINE, "virtual": 2}


class Following:
    """Learns made-up texts, some words of which have no loss."""

    def __init__(self, packed: bool, weighted: bool = False) -> None:
        self.packed, self.weighted = packed, weighted

    def prepare(self, batch: Batch, *, seed: int, training: bool) -> ModelInputs:
        """Tokens that are a function of the sample's key; packed, each row is two documents."""
        words = torch.stack(
            [torch.randint(0, WORDS, (LENGTH + 1,), generator=generator(seed, "text", key)) for key in batch.keys]
        )
        labels = words[:, 1:].clone()
        labels[:, ::7] = vocab_parallel_loss.IGNORED
        inputs = {"tokens_BS": words[:, :-1], "labels_BS": labels}
        if self.packed:
            inputs["lengths_N"] = torch.tensor([10, LENGTH - 10] * len(batch))
        if self.weighted:
            inputs["loss_weight_B"] = batch.weight_B
        return ModelInputs(inputs, {}, batch.weight_B)

    def losses(self, output: Tensor, prepared: ModelInputs) -> Tensor:
        """Mean of each row."""
        return output.mean(1)


class Awake(GPT):
    """No weight is zero at the start, so each has an influence and a gradient."""

    def initial_weight(self, name: str, shape: torch.Size, seed: int) -> Tensor:
        moved = 0.1 * torch.randn(shape, generator=generator(seed, "awake", name))
        return super().initial_weight(name, shape, seed) + moved


def steps(
    rank: int, degrees: dict[str, Any], model: dict[str, Any], packed: bool, weighted: bool = False
) -> dict[str, Any]:
    """Two steps' losses and norms, the first one's gradients."""
    plan, engine = ParallelPlan(**degrees), TorchEngine()
    made = partial(Awake, vocab=WORDS, width=48, depth=4, heads=8, mlp_hidden=64, **model)
    optimizer = partial(torch.optim.AdamW, lr=1e-3)
    engine = engine.start(EngineInputs(made, Following(packed, weighted), optimizer, Precision("fp32"), 3, plan))
    results = [engine.step([own(plan, rank, 0)])]
    grads = {name: whole(parameter.grad).clone() for name, parameter in engine.model.named_parameters()}
    results.append(engine.step([own(plan, rank, 1)]))
    return {"loss": [r.loss for r in results], "norm": [r.grad_norm for r in results], "gradients": grads}


def first_weights(rank: int, degrees: dict[str, Any], init: Any, large: int) -> dict[str, Tensor]:
    """Before any step."""
    with patch.object(model_start, "_LARGE", large):
        made = partial(GPT, vocab=WORDS, width=48, depth=2, heads=8, mlp_hidden=64)
        optimizer, plan = partial(torch.optim.AdamW, lr=1e-3), ParallelPlan(**degrees)
        inputs = EngineInputs(made, Following(False), optimizer, Precision("fp32"), 3, plan)
        engine = TorchEngine(init=init).start(inputs)
    return {name: whole(parameter).detach().clone() for name, parameter in engine.model.named_parameters()}


def test_weights_that_are_drawn_by_counters_are_the_same_on_every_layout() -> None:
    (alone,) = on_ranks(1, first_weights, {}, "counter", 10**9)
    (large,) = on_ranks(1, first_weights, {}, "auto", 1000)
    (other,) = on_ranks(1, first_weights, {}, "auto", 10**9)
    split = on_ranks(4, first_weights, {"tensor": 2, "shard": 2}, "counter", 10**9)
    drawn = [name for name, one in alone.items() if not name.endswith("norm.weight")]
    assert len(drawn) > 8
    for name, weight in alone.items():
        assert all(torch.equal(one[name], weight) for one in (large, *split))
        assert torch.equal(other[name], weight) == (name not in drawn)


def apart(found: list[dict[str, Any]], alone: dict[str, Any]) -> float:
    """The worst gradient's relative difference; losses and norms are required to be alike."""
    assert set().union(*(one["gradients"] for one in found)) == set(alone["gradients"])
    for one in found:
        assert one["loss"] == pytest.approx(alone["loss"], rel=1e-5)
        assert one["norm"] == pytest.approx(alone["norm"], rel=1e-4)
    expected = alone["gradients"]
    return max(
        float((grad - expected[name]).norm() / expected[name].norm())
        for one in found
        for name, grad in one["gradients"].items()
    )


ALONE: dict[str, dict[str, Any]] = {}


def alone(model: dict[str, Any], packed: bool) -> dict[str, Any]:
    key = f"{model}{packed}"
    if key not in ALONE:
        ALONE[key] = on_ranks(1, steps, {}, model, packed)[0]
    return ALONE[key]


OFTEN: list[tuple[dict[str, Any], dict[str, Any], bool]] = [
    (SEQUENCE | {"context": 2}, NEMOTRON, False),
    ({"context": 2, "attention": "ulysses", "shard": 2}, LLAMA, True),
    (PIPELINE, TIED, False),
    (INTERLEAVED | SEQUENCE, TIED, True),
    (INTERLEAVED | {"context": 2, "schedule": "zero_bubble"}, LLAMA, False),
    (SEQUENCE | {"context": 2}, SINGLE, False),
]
OTHERS: list[tuple[dict[str, Any], dict[str, Any], bool]] = [
    ({"tensor": 4, "sequence": True}, PAIR, True),
    ({"tensor": 2}, LLAMA, False),
    (SEQUENCE, NEMOTRON, True),
    ({"context": 2}, NEMOTRON, True),
    ({"context": 4}, LLAMA, False),
    ({"shard": 2}, TIED, False),
    (SEQUENCE, TIED, False),
    (PIPELINE | {"shard": 2}, NEMOTRON, True),
    (PIPELINE | SEQUENCE, NEMOTRON, True),
    ({"tensor": 4}, SINGLE, True),
    (SEQUENCE | {"shard": 2}, SINGLE, False),
    (PIPELINE | SEQUENCE, SINGLE, False),
]


@pytest.mark.parametrize(("degrees", "model", "packed"), cases(OFTEN + OTHERS, OFTEN), ids=str)
def test_losses_and_gradients_are_one_devices(degrees: dict[str, Any], model: dict[str, Any], packed: bool) -> None:
    found = on_ranks(ParallelPlan(**degrees).world, steps, degrees, model, packed)
    assert apart(found, alone(model, packed)) < 1e-4


def steps_by_runs(rank: int, degrees: dict[str, Any], model: dict[str, Any], weighted: bool) -> dict[str, Any]:
    """The same, of texts that are packed, with scores of seven tokens at a time."""
    with patch.multiple(linear_token_losses, _LARGE=1, _SCORES=7 * WORDS):
        return steps(rank, degrees, model, True, weighted)


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize(
    ("degrees", "model"),
    [({}, LLAMA), (SEQUENCE | {"context": 2}, NEMOTRON), ({"tensor": 2, "shard": 2}, LLAMA), (SEQUENCE, TIED),
     (INTERLEAVED | {"shard": 2}, LLAMA)], ids=str,
)  # fmt: skip
def test_losses_without_all_scores_are_those_of_one_device(
    degrees: dict[str, Any], model: dict[str, Any], weighted: bool
) -> None:
    found = on_ranks(ParallelPlan(**degrees).world, steps_by_runs, degrees, model, weighted)
    assert apart(found, alone(model, True)) < 1e-4


@pytest.mark.parametrize("degree", [2, 4])
def test_ranks_that_share_a_head_agree_within_rounding(degree: int) -> None:
    found = on_ranks(degree, steps, {"tensor": degree}, SINGLE, False)
    assert apart(found, alone(SINGLE, False)) < 1e-5


def without(rank: int, sums: str, degrees: dict[str, Any], model: dict[str, Any], packed: bool) -> dict[str, Any]:
    """Sums left out on purpose: of gradients over the ranks of one head, or over the parts of the vocabulary."""
    heads = parallel_attention, "_sum_groups", lambda parts, shared: parts[shared.rank]
    with patch.object(*(heads if sums == "heads" else (vocab_parallel_loss, "all_reduce", lambda x, how, group: x))):
        return steps(rank, degrees, model, packed)


@pytest.mark.parametrize(("sums", "model"), [("heads", SINGLE), ("words", LLAMA)])
def test_sums_that_are_left_out_are_seen(sums: str, model: dict[str, Any]) -> None:
    found = on_ranks(2, without, sums, {"tensor": 2}, model, False)
    with pytest.raises(AssertionError):
        assert apart(found, alone(model, False)) < 1e-4


def gone_on(rank: int, degrees: dict[str, Any], folder: Path, index: int) -> tuple[float, tuple[int, ...]]:
    """One step from the newest checkpoint, if there is one, and a checkpoint: its loss, and a shape that was saved."""
    plan, engine, ranks = ParallelPlan(**degrees), TorchEngine(), gather_group()
    made = partial(Awake, vocab=WORDS, width=48, depth=4, heads=8, mlp_hidden=64, **SINGLE)
    optimizer = partial(torch.optim.AdamW, lr=1e-3)
    engine = engine.start(EngineInputs(made, Following(False), optimizer, Precision("fp32"), 3, plan))
    if index:
        engine.load(checkpoint.open_latest(folder, ranks).groups)  # type: ignore[union-attr]
    loss = engine.step([own(plan, rank, index)]).loss
    checkpoint.save(folder, index + 1, engine.tensors(), {"step": index + 1}, ranks=ranks)
    saved = checkpoint.open_latest(folder, ranks)
    assert saved is not None
    return loss, tuple(saved.groups["model"]["blocks.0.attention.qkv.weight"].shape)


def test_a_checkpoint_holds_a_shared_head_once_and_goes_on_among_other_ranks(tmp_path: Path) -> None:
    for index, degree in enumerate((2, 4)):
        for loss, shape in on_ranks(degree, gone_on, {"tensor": degree}, tmp_path, index):
            assert loss == pytest.approx(alone(SINGLE, False)["loss"][index], rel=1e-5)
            assert shape == ((8 + 2) * 6, 48)


@pytest.mark.parametrize(
    ("degrees", "groups", "said"),
    [
        ({"tensor": 3}, 4, r"4 attention heads \(8 of queries\) cannot be divided by 3 .* fit are 1, 2, 4, 8"),
        ({"tensor": 16}, 2, r"cannot be divided by 16 .* fit are 1, 2, 4, 8"),
        ({"tensor": 4, "context": 2, "attention": "ulysses"}, 2, r"cannot be divided by 8 .* fit are 1\."),
        ({"tensor": 4, "context": 2, "attention": "ulysses"}, 1, "no tensor degree fits"),
    ],
)
def test_degrees_that_heads_do_not_allow_are_refused_with_those_that_they_do(
    degrees: dict[str, Any], groups: int, said: str
) -> None:
    with torch.device("meta"):
        model = GPT(vocab=WORDS, width=48, depth=4, heads=8, mlp_hidden=64, groups=groups)
    with pytest.raises(UserError, match=said):
        require_divisible(model, ParallelPlan(**degrees))
    require_divisible(model, ParallelPlan(tensor=4))
