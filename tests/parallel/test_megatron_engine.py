"""Tests that Megatron-Core gives one device's numbers, continues the other engine's checkpoints, and refuses well."""

import math
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.precision import Precision
from nemo_vfm.parallel.apply.local_shard import local
from nemo_vfm.parallel.checkpoint import checkpoint
from nemo_vfm.parallel.checkpoint.checkpoint_ranks import gather_group
from nemo_vfm.parallel.checkpoint.checkpoint_reader import SavedTensors
from nemo_vfm.parallel.engine import weight_updater
from nemo_vfm.parallel.engine.param_groups import ParamGroup, grouped_optimizer
from nemo_vfm.parallel.engine.step_runner import EngineInputs
from nemo_vfm.parallel.engine.torch_engine import TorchEngine
from nemo_vfm.parallel.megatron.megatron_engine import MegatronEngine
from nemo_vfm.parallel.plan.plan import ParallelPlan
from tests.parallel.test_gpt_layouts import Awake, Following
from tests.support.combinations import cases
from tests.support.cpu_megatron import MEGATRON, megatron_on_cpu
from tests.support.layouts import IN_CHANNELS, Doubling, own, space_time, tiny, wan, whole
from tests.support.ranks import on_ranks
from tests.support.tiny_training import changes, metrics, shards
from tests.support.tiny_training import trained as recipe_trained

pytestmark = pytest.mark.cluster  # several ranks
RANKS_IMPORT = MEGATRON

STEPS = 2
GPT_TIED = partial(
    Awake, vocab=96, width=48, depth=4, heads=8, mlp_hidden=64, groups=4, qk_norm=True, qkv_bias=True, tied=True
)
SEQUENCE: dict[str, Any] = {"tensor": 2, "sequence": True}
PIPELINE: dict[str, Any] = {"pipeline": 2, "microbatches": 2}
VIRTUAL: dict[str, Any] = {"pipeline": 2, "virtual": 2, "microbatches": 4}
MODELS: dict[str, tuple[Any, Any]] = {
    "dit": (tiny, Doubling()),
    "st_dit": (space_time, Doubling((4, 4, 4, 8))),
    "wan": (wan, IN_CHANNELS),
    "gpt": (GPT_TIED, Following(False)),
    "gpt packed": (GPT_TIED, Following(True)),
}
OFTEN: list[tuple[int, list[tuple[str, dict[str, Any]]]]] = [
    (1, [("dit", {}), ("gpt", {"microbatches": 2})]),
    (2, [
        ("dit", {"shard": 2}), ("dit", SEQUENCE), ("st_dit", {"context": 2}), ("wan", SEQUENCE), ("gpt", {"tensor": 2}),
        ("gpt packed", SEQUENCE), ("wan", PIPELINE), ("gpt", PIPELINE), ("gpt packed", VIRTUAL),
    ]),
    (4, [
        ("gpt", {**SEQUENCE, "context": 2}), ("gpt packed", {"context": 2, "shard": 2, "attention": "ulysses"}),
        ("dit", {**VIRTUAL, **SEQUENCE}), ("gpt", {**PIPELINE, "shard": 2}),
    ]),
]  # fmt: skip
OTHERS: list[tuple[int, list[tuple[str, dict[str, Any]]]]] = [
    (2, [
        ("dit", {"replicate": 2}), ("dit", {"tensor": 2}), ("dit", {"context": 2}), ("st_dit", SEQUENCE),
        ("gpt", {"context": 2}), ("st_dit", PIPELINE), ("dit", VIRTUAL), ("dit", {**VIRTUAL, "microbatches": 2}),
    ]),
    (4, [
        ("dit", {"shard": 2, "replicate": 2}), ("dit", {**SEQUENCE, "shard": 2}), ("gpt", {**VIRTUAL, "context": 2}),
        ("dit", {"pipeline": 4, "microbatches": 4}),
    ]),
]  # fmt: skip


def started(engine: Any, plan: ParallelPlan, model: Any, task: Any) -> Any:
    # Adam's first step is g / |g|: with an eps of 1e-8, rounding decides where g is nearly 0 (1.2e-5 on an AMD EPYC).
    optimizer = partial(torch.optim.AdamW, lr=1e-3, weight_decay=0.1, eps=1e-5)
    return engine.start(EngineInputs(model, task, optimizer, Precision("fp32"), 3, plan))


def trained(engine: Any, rank: int, degrees: dict[str, Any], model: Any, task: Any) -> dict[str, Any]:
    plan = ParallelPlan(**degrees)
    engine = started(engine, plan, model, task)
    results = [engine.step([own(plan, rank, index)]) for index in range(STEPS)]
    return {"loss": [r.loss for r in results], "norm": [r.grad_norm for r in results]}


def alone(rank: int, names: list[str]) -> dict[str, Any]:
    """The other engine on one device."""
    return {name: trained(TorchEngine(), 0, {}, *MODELS[name]) for name in names}


def by_megatron(rank: int, models: list[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    with megatron_on_cpu():
        return [trained(MegatronEngine(), rank, degrees, *MODELS[name]) for name, degrees in models]


@pytest.fixture(scope="module")
def one_device() -> dict[str, Any]:
    return on_ranks(1, alone, list(MODELS))[0]


@pytest.mark.parametrize(
    ("count", "models"),
    cases(OFTEN + OTHERS, OFTEN),
    ids=["one rank", "two ranks", "four ranks", "others on two", "others on four"],
)
def test_every_layout_gives_one_devices_losses_and_norms(one_device: dict[str, Any], count: int, models: Any) -> None:
    for found in on_ranks(count, by_megatron, models):
        for (name, degrees), one in zip(models, found, strict=True):
            for key in ("loss", "norm"):
                assert one[key] == pytest.approx(one_device[name][key], rel=1e-5), (name, degrees)


#: Norms and biases as they are; queries and keys at a rate of their own.
GROUPS = {"no_decay": ParamGroup(parameters=["*norm.weight", "*.bias"], weight_decay=0.0),
          "slow": ParamGroup(parameters=["*.qkv.weight"], lr_scale=0.25)}  # fmt: skip


def weights(rank: int, kind: type, degrees: dict[str, Any], groups: Any = None) -> dict[str, torch.Tensor]:
    """After steps in which weight decay moves more than gradients do."""
    with megatron_on_cpu() if kind is MegatronEngine else nullcontext():
        optimizer = partial(grouped_optimizer, lr=1e-3, weight_decay=20.0, eps=1e-5, groups=groups)
        plan, engine = ParallelPlan(**degrees), kind()
        engine = engine.start(EngineInputs(*MODELS["dit"], optimizer, Precision("fp32"), 3, plan))
        for index in range(STEPS):
            engine.step([own(plan, rank, index)])
        return {name: whole(tensor).clone() for name, tensor in engine.tensors()["model"].items()}


@pytest.mark.parametrize("groups", [None, GROUPS], ids=["alike", "groups"])
def test_every_weight_norm_and_bias_decays_as_in_the_other_engine(groups: Any) -> None:
    expected = on_ranks(1, weights, TorchEngine, {}, groups)[0]
    pipeline = [(2, PIPELINE)] if groups else []  # a stage without some of the groups
    for count, degrees in ((1, {}), (2, {"shard": 2}), *pipeline):
        ranks = on_ranks(count, weights, MegatronEngine, degrees, groups)
        found = {name: tensor for one in ranks for name, tensor in one.items()}
        assert found.keys() == expected.keys()
        for name, tensor in found.items():
            torch.testing.assert_close(tensor, expected[name], rtol=1e-3, atol=1e-4, msg=f"{degrees} {name}")


def first_gradients(rank: int, degrees: dict[str, Any]) -> dict[str, float]:
    """The norm of each parameter's gradient in the first step, of all its parts."""
    plan = ParallelPlan(**degrees)
    engine = started(MegatronEngine(clip_norm=None), plan, *MODELS["dit"])
    engine.step([own(plan, rank, 0)])
    return {name: float(whole(grad).norm()) for name, grad in engine.weights.gradients().items()}


def with_and_without_sums(rank: int, degrees: dict[str, Any]) -> tuple[dict[str, float], dict[str, float]]:
    """Gradients as they should be, and those where one kind of sum was left out."""
    with megatron_on_cpu(), pytest.MonkeyPatch.context() as patch:
        expected = first_gradients(rank, degrees)
        from megatron.core.distributed import DistributedDataParallel

        if "tensor" in degrees or "pipeline" in degrees:
            patch.setattr(weight_updater, "all_reduce", lambda parts, group: None)
        else:
            patch.setattr(DistributedDataParallel, "finish_grad_sync", lambda self, **_: None)
        return expected, first_gradients(rank, degrees)


@pytest.mark.parametrize("degrees", cases(
    [{"replicate": 2}, {"context": 2}, {"tensor": 2}, SEQUENCE, PIPELINE], [{"context": 2}, SEQUENCE, PIPELINE]
), ids=str)  # fmt: skip
def test_a_sum_that_is_left_out_is_seen(degrees: dict[str, Any]) -> None:
    expected, found = on_ranks(2, with_and_without_sums, degrees)[0]
    wrong = [name for name, norm in found.items() if abs(norm / expected[name] - 1) > 0.01]
    if "pipeline" in degrees:  # on every stage
        assert {name.partition(".")[0] for name in wrong} == {"noise_embedding", "text_embedding"}
    else:
        assert len(wrong) >= 4 * 4, "the four norms of queries and keys in each of four blocks, at least"


def by_defaults(rank: int) -> list[float]:
    """Losses of the interleaved schedule with Megatron-Core's own settings for exchanges between stages."""
    with megatron_on_cpu(), pytest.MonkeyPatch.context() as patch:
        from nemo_vfm.parallel.megatron import schedule

        ours = schedule.config_of

        def theirs(plan: ParallelPlan) -> Any:
            config = ours(plan)
            config.overlap_p2p_comm, config.batch_p2p_comm = False, True
            return config

        patch.setattr(schedule, "config_of", theirs)
        return trained(MegatronEngine(), rank, VIRTUAL, *MODELS["dit"])["loss"]


def test_the_interleaved_schedules_own_settings_would_be_wrong_at_two_stages(one_device: dict[str, Any]) -> None:
    """In silence: as long as this holds, ours must stay."""
    assert on_ranks(2, by_defaults)[0] != pytest.approx(one_device["dit"]["loss"], rel=1e-5)


def by_pairs(rank: int, degrees: dict[str, Any]) -> tuple[list[float], list[float]]:
    """Norms where the schedule is given a pair, as its documentation shows, in the place of a triple; and losses."""
    with megatron_on_cpu(), pytest.MonkeyPatch.context() as patch:
        from nemo_vfm.parallel.megatron import schedule

        patch.setattr(schedule, "_three", lambda loss: (loss, None))
        found = trained(MegatronEngine(), rank, degrees, *MODELS["gpt"])
        return found["norm"], found["loss"]


@pytest.mark.parametrize(("count", "degrees", "factor"), [
    (2, {"context": 2}, 2.0),  # multiplied by the context ranks
    (1, {"microbatches": 2}, 0.5),  # divided by the microbatches
], ids=["context", "microbatches"])  # fmt: skip
def test_a_pairs_loss_would_be_scaled_and_what_is_logged_is_not(
    one_device: dict[str, Any], count: int, degrees: dict[str, Any], factor: float
) -> None:
    """Megatron-Core scales it in place: as long as this holds, ours must stay a triple, and the logged loss a copy."""
    norms, losses = on_ranks(count, by_pairs, degrees)[0]
    assert norms[0] == pytest.approx(factor * one_device["gpt"]["norm"][0], rel=1e-4)
    assert losses[0] == pytest.approx(one_device["gpt"]["loss"][0], rel=1e-5)


def gone_on(rank: int, kind: str, degrees: dict[str, Any], folder: Path, first: int, last: int) -> list[float]:
    """Some steps from the newest checkpoint, if there is one, and a checkpoint."""
    with megatron_on_cpu() if kind == "megatron" else nullcontext():
        plan, ranks = ParallelPlan(**degrees), gather_group()
        engine = started(MegatronEngine() if kind == "megatron" else TorchEngine(), plan, *MODELS["gpt"])
        if first:
            saved = checkpoint.open_latest(folder, ranks)
            assert saved is not None
            engine.load(saved.groups)
        losses = [engine.step([own(plan, rank, index)]).loss for index in range(first, last)]
        checkpoint.save(folder, last, engine.tensors(), {"step": last}, ranks=ranks)
        return losses


def kept_and_read(rank: int, degrees: dict[str, Any], folder: Path) -> tuple[float, float]:
    """Numbers of optimizer state that this rank saves and reads again, over its weights."""
    read = 0

    def counted(self: SavedTensors, name: str, offsets: Any, shape: Any) -> torch.Tensor:
        nonlocal read
        read += math.prod(shape) if "/exp_avg" in name else 0
        return whole_read(self, name, offsets, shape)

    whole_read = SavedTensors.read
    with megatron_on_cpu(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(SavedTensors, "read", counted)
        plan, ranks = ParallelPlan(**degrees), gather_group()
        engine = started(MegatronEngine(), plan, *MODELS["gpt"])
        engine.step([own(plan, rank, 0)])
        groups = engine.tensors()
        checkpoint.save(folder, 1, groups, {"step": 1}, ranks=ranks)
        saved = checkpoint.open_latest(folder, ranks)
        assert saved is not None
        engine.load(saved.groups)
        kept = sum(local(one).numel() for one in groups["optimizer"].values())
        weights = sum(local(one).numel() for one in engine.model.parameters())
        return kept / weights, read / weights


def test_a_save_holds_and_a_load_reads_no_more_state_than_a_rank_updates(tmp_path: Path) -> None:
    """Two moments over two data ranks: one number a weight, where the whole would be two. Whole rows are read."""
    kept, read = zip(*on_ranks(4, kept_and_read, {**SEQUENCE, "shard": 2}, tmp_path), strict=True)
    assert max(kept) < 1.02 and max(read) < 1.02


def steady(rank: int, count: int) -> list[float]:
    """One engine on one device without a break."""
    engine = started(TorchEngine(), ParallelPlan(), *MODELS["gpt"])
    return [engine.step([own(ParallelPlan(), 0, index)]).loss for index in range(count)]


def test_a_run_goes_from_torch_to_megatron_and_back_and_keeps_its_losses(tmp_path: Path) -> None:
    """Two steps each: a step count that parameters share shows in the second step alone."""
    legs = [("torch", {"shard": 2}), ("megatron", {**SEQUENCE, "shard": 2}), ("megatron", VIRTUAL),
            ("megatron", {**PIPELINE, "shard": 2}),
            ("torch", {})]  # fmt: skip
    losses: list[float] = []
    for index, (kind, degrees) in enumerate(legs):
        world = ParallelPlan(**degrees).world
        losses += on_ranks(world, gone_on, kind, degrees, tmp_path, 2 * index, 2 * index + 2)[0]
    assert losses == pytest.approx(on_ranks(1, steady, len(losses))[0], rel=1e-5)


def refused(rank: int, degrees: dict[str, Any], optimizer: Any) -> str:
    try:
        with megatron_on_cpu():
            MegatronEngine().start(
                EngineInputs(tiny, Doubling(), optimizer, Precision("fp32"), 3, ParallelPlan(**degrees))
            )
    except UserError as error:
        return str(error)
    return "nothing was refused"


@pytest.mark.parametrize(("degrees", "optimizer", "words"), [
    ({}, partial(torch.optim.SGD, lr=0.1), "the recipe's optimizer is SGD"),
    ({}, partial(torch.optim.AdamW, lr=0.1, amsgrad=True), "has no amsgrad"),
    ({**VIRTUAL, "schedule": "zero_bubble"}, partial(torch.optim.AdamW, lr=0.1), "no zero-bubble schedule"),
])  # fmt: skip
def test_what_is_not_connected_is_refused(degrees: dict[str, Any], optimizer: Any, words: str) -> None:
    assert words in refused(0, degrees, optimizer)


def test_a_machine_without_gpu_is_told_in_one_sentence() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(UserError, match="this process has none"):
        started(MegatronEngine(), ParallelPlan(), *MODELS["dit"])


def by_recipe(rank: int, words: list[str]) -> None:
    """A whole training, with its checkpoints, averages and previews."""
    with megatron_on_cpu():
        recipe_trained(rank, words)


def test_a_recipe_trains_is_resumed_by_the_other_engine_and_keeps_its_losses(tmp_path: Path) -> None:
    data = shards(tmp_path / "data")
    on_ranks(1, recipe_trained, changes(data, tmp_path / "alone"))
    layout = ["engine=megatron", "parallel.tensor=2", "parallel.sequence=true"]
    on_ranks(2, by_recipe, changes(data, tmp_path / "both", *layout, steps=4))
    on_ranks(1, recipe_trained, changes(data, tmp_path / "both"))
    found, expected = ([line["loss"] for line in metrics(tmp_path / name)] for name in ("both", "alone"))
    assert len(found) == 6 and found == pytest.approx(expected, rel=1e-4)
