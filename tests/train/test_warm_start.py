"""Tests runs that start from another's weights, are extended, or keep their best, without Lightning's outer loop."""

import shutil
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from nemo_vfm.config import build, compose, trust_list
from nemo_vfm.core import log
from nemo_vfm.core.duration import Duration
from nemo_vfm.core.errors import CorruptCheckpoint, UserError
from nemo_vfm.core.metric_names import VALIDATION_LOSSES
from nemo_vfm.core.storage.files import sha256_file
from nemo_vfm.core.storage.uri import Address
from nemo_vfm.core.types.job import Outcome, Run
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.models.gpt import GPT
from nemo_vfm.parallel.apply.build_model import build_unfilled
from nemo_vfm.parallel.checkpoint import checkpoint
from nemo_vfm.train.callbacks.checkpointing import SaveCheckpoints
from nemo_vfm.train.callbacks.validation import Validate
from nemo_vfm.train.ema import EMA
from nemo_vfm.train.job import Train, start
from nemo_vfm.train.loop import Loop
from nemo_vfm.train.optim import Constant, WarmupCosine
from nemo_vfm.train.state.slots import Schedule
from nemo_vfm.train.state.train_state import TrainState
from nemo_vfm.train.warm_start import WarmStart, Weights
from nemo_vfm.workflow import Workflow
from tests.support.object_store import BUCKET, Failing
from tests.support.toy import ToyData, ToyModel, ToyTask


def job(
    duration: str = "10 steps", *, start_from: Path | WarmStart | None = None, model: type[nn.Module] = ToyModel,
    ema: bool = True, schedule: Schedule = Constant(), saving: SaveCheckpoints | None = None,
    validation: Validate | None = None,
) -> Train:  # fmt: skip
    return Train(
        model=model, data=ToyData(), task=ToyTask(), optimizer=partial(torch.optim.AdamW, lr=0.05),  # type: ignore[arg-type]
        schedule=schedule, weights=Weights(start_from=start_from), callbacks={"ema": EMA(decay=0.9)} if ema else {},
        loop=Loop(duration=Duration.parse(duration), checkpoint=saving or SaveCheckpoints(every_steps=4),
                  validation=validation),
    )  # fmt: skip


def trained(job: Train, folder: Path, seed: int = 3, until: int | None = None) -> TrainState:
    """Start or go on, take all steps or some, and save: what the outer loop does, without its seconds of imports."""
    return stepped(job, Run(folder, seed=seed), until)


def stepped(job: Train, run: Run, until: int | None = None) -> TrainState:
    """The same, of a run that says more."""
    run.folder.mkdir(parents=True, exist_ok=True)
    fit = start(job, run)
    batches = iter(job.data.train_dataloader())
    while not fit.finished and fit.step != until:
        fit.advance(next(batches))
        if job.loop.validation:
            job.loop.validation.on_step(fit)
        job.loop.checkpoint.on_step(fit)
    job.loop.checkpoint.on_end(fit)
    return fit


def same(one: dict[str, Tensor], two: dict[str, Tensor]) -> bool:
    """Every name and every bit."""
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


class Wider(ToyModel):
    """The toy with another first layer, without bias, and one layer more."""

    def __init__(self) -> None:
        super().__init__()
        self.net[0] = nn.Linear(4, 8, bias=False)
        self.head = nn.Linear(4, 4)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    trained(job(), tmp_path / "source")
    (tmp_path / "source" / "recipe.yaml").touch()
    (tmp_path / "source" / "manifest.json").touch()
    return tmp_path / "source"


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    texts: list[str] = []
    monkeypatch.setattr(log, "warn", texts.append)
    monkeypatch.setattr(log, "warn_once", texts.append)
    return texts


@pytest.mark.parametrize("below", ["", "checkpoints", "checkpoints/step-00000010"])
def test_a_new_run_begins_with_the_averaged_weights_of_another_and_all_else_fresh(
    source: Path, tmp_path: Path, below: str
) -> None:
    fit = start(job(start_from=source / below), Run(tmp_path / "new", seed=9))
    groups = checkpoint.load(source / "checkpoints/step-00000010").groups
    assert same(dict(fit.model.state_dict()), dict(groups["ema"])) and not same(groups["ema"], groups["model"])
    assert fit.ema is not None and same(fit.ema.weights, dict(groups["ema"]))
    assert fit.step == 0 and fit.elapsed_s == 0 and fit.groups()["optimizer"] == {}
    assert fit.started_from == {
        "path": str(source / "checkpoints/step-00000010"), "run": checkpoint.records(source / "checkpoints")[0].run,
        "step": 10, "weights": "ema", "sha256": sha256_file(source / "checkpoints/step-00000010/ema.safetensors"),
        "not_taken": [],
    }  # fmt: skip


def test_the_models_own_weights_can_be_asked_for_and_are_taken_where_there_is_no_average(
    source: Path, tmp_path: Path
) -> None:
    groups = checkpoint.load(source / "checkpoints/step-00000010").groups
    fit = start(job(start_from=WarmStart(path=source, weights="model")), Run(tmp_path / "new"))
    assert same(dict(fit.model.state_dict()), dict(groups["model"]))
    trained(job(ema=False), tmp_path / "plain")
    fit = start(job(start_from=tmp_path / "plain"), Run(tmp_path / "new"))
    assert fit.started_from is not None and fit.started_from["weights"] == "model"
    with pytest.raises(UserError, match="holds no ema weights"):
        start(job(start_from=WarmStart(path=tmp_path / "plain", weights="ema")), Run(tmp_path / "new"))


def test_a_resume_wins_over_a_warm_start_and_what_was_taken_stays_on_record(source: Path, tmp_path: Path) -> None:
    trained(job(start_from=source), tmp_path / "new", seed=9, until=4)
    whole = trained(job(start_from=source), tmp_path / "whole", seed=9)
    for path in (source / "checkpoints").iterdir():
        (path / "ema.safetensors").write_bytes(b"gone")
    resumed = trained(job(start_from=source), tmp_path / "new", seed=9)
    assert same(resumed.groups()["model"], whole.groups()["model"])
    state = checkpoint.load(tmp_path / "new/checkpoints/step-00000010").state
    assert state["started_from"]["step"] == 10 and len(state["started_from"]["sha256"]) == 64


def test_weights_of_another_model_are_refused_with_the_difference_and_a_way_on(source: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError) as refused:
        start(job(start_from=source, model=Wider), Run(tmp_path / "new"))
    assert "missing: head.bias, head.weight; unknown: net.0.bias" in str(refused.value)
    assert "weights.start_from.may_differ=[head]" in str(refused.value)


def test_what_may_differ_keeps_the_values_of_the_seed_and_is_said(
    source: Path, tmp_path: Path, said: list[str]
) -> None:
    fresh = start(job(model=Wider), Run(tmp_path / "fresh", seed=9)).model.state_dict()
    warm = WarmStart(path=source, may_differ=["head", "net.0"])
    fit = start(job(start_from=warm, model=Wider), Run(tmp_path / "new", seed=9))
    own, theirs = fit.model.state_dict(), checkpoint.load_weights(source, "ema")
    assert torch.equal(own["head.weight"], fresh["head.weight"])
    assert torch.equal(own["net.0.weight"], theirs["net.0.weight"]), "it may differ, and does not"
    assert torch.equal(own["net.2.weight"], theirs["net.2.weight"])
    assert said == ["not loaded from there (initialised by the seed or left out): head.bias, head.weight, net.0.bias"]
    assert fit.started_from is not None and fit.started_from["not_taken"] == ["head.bias", "head.weight", "net.0.bias"]


@pytest.mark.parametrize("name", ["haed", "ne"])  # blocks.1 must not leave blocks.10 untrained
def test_a_name_that_no_weight_has_up_to_a_dot_is_refused(source: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match=rf"has weights below '{name}'; they have net"):
        start(job(start_from=WarmStart(path=source, may_differ=[name])), Run(tmp_path / "new"))


def test_a_run_that_is_not_there_or_has_trained_nothing_is_said(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "empty", tmp_path / "none"):
        with pytest.raises(UserError, match="There is no checkpoint in"):
            start(job(start_from=path), Run(tmp_path / "new"))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["weights.start_from=runs/a"], (Path("runs/a"), None, ())),
        (["weights.start_from={path: runs/a, weights: model}"], (Path("runs/a"), "model", ())),
        (["weights.start_from.path=runs/a", "weights.start_from.may_differ=[text]"], (Path("runs/a"), None, ("text",))),
    ],
)
def test_a_recipe_says_it_as_a_path_or_as_a_mapping(words: list[str], expected: tuple[object, ...]) -> None:
    built = build(compose("diffusion/train_small", ["data.shards=x", *words]), trust_list([]))
    assert isinstance(built, Train) and built.weights.start_from is not None
    start = built.weights.start_from
    assert (start.path, start.weights, start.may_differ) == expected


def test_an_extended_run_equals_one_long_run_in_every_bit(tmp_path: Path, said: list[str]) -> None:
    fits = {}
    for name, durations in {"two": ("5 steps", "10 steps"), "one": ("10 steps",)}.items():
        for duration in durations:
            fits[name] = trained(job(duration, schedule=Constant(warmup_steps=7)), tmp_path / name)
    one, two = fits["one"], fits["two"]
    assert all(same(one.groups()[group], two.groups()[group]) for group in ("model", "ema", "optimizer"))
    assert one.metrics == two.metrics and one.step == two.step == 10
    assert not said


@pytest.mark.parametrize(("schedule", "times"), [
    (WarmupCosine(), 1), (WarmupCosine(total_steps=20), 0), (Constant(), 0), (WarmupCosine(warmup_steps=9), 0),
])  # fmt: skip
def test_a_schedule_whose_past_depends_on_the_length_is_said(
    tmp_path: Path, said: list[str], schedule: Schedule, times: int
) -> None:
    for duration in ("10 steps", "12 steps"):
        trained(job(duration, schedule=schedule), tmp_path, until=5)
    assert [text.partition(" steps until")[0] for text in said] == [
        "the schedule depends on the length: it was for 10"
    ] * times


@pytest.mark.parametrize("metric", VALIDATION_LOSSES)
def test_the_best_by_the_validation_loss_stays_over_a_resume_whatever_its_name(metric: str, tmp_path: Path) -> None:
    def saving() -> SaveCheckpoints:
        return SaveCheckpoints(every_steps=1, keep_last=1, keep_best=1, metric=metric, mode="max", keep_every_steps=6)

    trained(job(saving=saving(), validation=Validate(every_steps=1)), tmp_path, until=3)
    trained(job(saving=saving(), validation=Validate(every_steps=1)), tmp_path)
    kept = {record.step: record for record in checkpoint.records(tmp_path / "checkpoints")}
    assert sorted(kept) == [1, 6, 10], "the loss falls, so the first is the one with the largest"
    assert kept[6].permanent and {"val_loss", "loss"} <= kept[1].metrics.keys()
    assert len({record.run for record in kept.values()}) == 1


def test_a_metric_that_never_appears_is_said(tmp_path: Path, said: list[str]) -> None:
    trained(job(saving=SaveCheckpoints(every_steps=5, keep_best=1, metric="beauty")), tmp_path)
    assert any("beauty was not measured at every checkpoint's step" in text for text in said)
    assert said[-1].startswith("keep_best: 1 had no effect")


def test_the_best_by_a_loss_that_nobody_measures_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="keep_best chooses by val_loss, which is not measured: set validation"):
        job(saving=SaveCheckpoints(keep_best=1))


@pytest.mark.parametrize("state", [None, [], {"step": "4"}, {"step": 5}, {"elapsed_s": 1}])
def test_a_checkpoint_whose_state_is_not_a_trainings_is_refused(tmp_path: Path, state: object) -> None:
    fit = trained(job(), tmp_path / "a")
    checkpoint.save(tmp_path / "b" / "checkpoints", 4, fit.groups(), state)
    with pytest.raises(CorruptCheckpoint, match="does not hold a training's state"):
        start(job(), Run(tmp_path / "b"))


def test_a_checkpoint_without_averages_is_refused_where_they_are_needed(tmp_path: Path) -> None:
    trained(job(ema=False), tmp_path)
    with pytest.raises(CorruptCheckpoint, match="it lacks ema"):
        start(job(), Run(tmp_path))


class Steps:
    """A job of a workflow that trains until some step."""

    def __init__(self, saving: SaveCheckpoints, until: int) -> None:
        self.saving, self.until = saving, until

    def run(self, run: Run) -> Outcome:
        return Outcome("", {"steps": stepped(job(saving=self.saving), run, self.until).step})


def test_copies_of_another_seed_or_behind_other_steps_are_not_gone_on_from(failing: Failing, tmp_path: Path) -> None:
    saving = SaveCheckpoints(every_steps=4, copy_to=Address(f"s3://{BUCKET}/copies"))
    recipe = {"steps": {"first": {"x": 1}, "train": {"y": 1}}}

    def train(seed: int, recipe: dict[str, Json], until: int = 4) -> None:
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        steps = {"first": Steps(SaveCheckpoints(), 1), "train": Steps(saving, until)}
        Workflow(steps=steps).run(Run(tmp_path / "run", recipe, seed))

    train(1, recipe)
    for seed, other in ((2, recipe), (1, {"steps": recipe["steps"] | {"first": {"x": 2}}})):
        with pytest.raises(UserError, match=r"another recipe \(seed_and_steps_above"):
            train(seed, other)
    train(1, recipe, until=8)
    assert any("GET" in line and "step-00000004/model" in line for line in failing.requests), "it was fetched"


def test_adapters_alone_begin_no_model(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, 1, {"model": {"a.adapters.own.a": torch.ones(1)}}, {"adapters": {"method": "lora"}})
    with pytest.raises(UserError, match=r"holds only adapters.*convert .* OUT --to transformers"):
        WarmStart(path=tmp_path).load_into(ToyModel())


def test_several_devices_keep_the_weights_that_a_model_brings() -> None:
    class Brought(GPT):
        """Of somebody's own class, which reads its weights while it is made."""

        def __init__(self) -> None:
            with torch.device("cpu"):
                super().__init__(vocab=8, width=8, depth=1, heads=1, mlp_hidden=8)
            torch.nn.init.constant_(self.head.weight, 0.5)

    model, empty = build_unfilled(Brought, seed=1)
    assert not empty and bool((model.get_parameter("head.weight") == 0.5).all())
    assert build_unfilled(partial(GPT, vocab=8, width=8, depth=1, heads=1, mlp_hidden=8), seed=1)[1]
