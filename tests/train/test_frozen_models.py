"""Tests that a frozen teacher is read, never moved or saved, the same at a resume and on every rank, and counted."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from nemo_vfm.cli.main import main
from nemo_vfm.core.duration import Duration
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.precision import Precision
from nemo_vfm.core.types.job import Run
from nemo_vfm.data.tokens.token_data import TokenData, TokenSource
from nemo_vfm.data.tokens.token_writer import write_tokens
from nemo_vfm.language.distillation_task import Distil
from nemo_vfm.models.gpt import GPT
from nemo_vfm.parallel.checkpoint import checkpoint
from nemo_vfm.parallel.plan.plan import ParallelPlan
from nemo_vfm.train.callbacks.checkpointing import SaveCheckpoints
from nemo_vfm.train.ema import EMA
from nemo_vfm.train.job import Train, start
from nemo_vfm.train.loop import Loop
from nemo_vfm.train.warm_start import FrozenModel, WarmStart, Weights
from tests.support.ranks import on_ranks
from tests.support.repository import ROOT
from tests.train.test_warm_start import same, trained

TEACHER = partial(GPT, vocab=64, width=32, depth=2, heads=2, mlp_hidden=48, init_std=0.3)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With the checkpoints of two teachers, and tokens."""
    for seed, name in enumerate(("teacher", "another")):
        torch.manual_seed(seed)
        checkpoint.save(tmp_path / name, 1, {"model": dict(TEACHER().state_dict())}, {})
    documents = [[(begin + n) % 60 for n in range(3 + begin % 40)] for begin in range(60)]
    write_tokens(tmp_path / "tokens", documents, vocab_size=64, end=63, tokenizer="t" * 64, per_shard=90)
    return tmp_path


def job(folder: Path, start_from: str = "teacher", model: Any = TEACHER, precision: Any = "fp32", **plan: Any) -> Train:
    data = TokenData(sources={"a": TokenSource(folder=folder / "tokens")}, sequence_length=32, batch_size=4,
                     packing="documents", val_fraction=0.1)  # fmt: skip
    return Train(
        model=partial(GPT, vocab=64, width=16, depth=1, heads=2, mlp_hidden=16), data=data,
        task=Distil(weight=0.5, temperature=2.0), optimizer=partial(torch.optim.AdamW, lr=0.01),
        weights=Weights(frozen={"teacher": FrozenModel(model=model, start_from=folder / start_from)}),
        callbacks={"ema": EMA(decay=0.9)}, precision=Precision(precision), parallel=ParallelPlan(**plan),
        loop=Loop(duration=Duration(4, "steps"), checkpoint=SaveCheckpoints(every_steps=2)),
    )  # fmt: skip


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_teacher_stays_in_no_checkpoint_and_a_resume_has_the_same_or_none(precision: str, folder: Path) -> None:
    whole = trained(one := job(folder, precision=precision), folder / "whole")
    teacher: Any = one.task.models["teacher"].__self__  # type: ignore[attr-defined]
    dtypes = {name: weight.dtype for name, weight in teacher.named_parameters()}
    given = checkpoint.load_weights(folder / "teacher", "model")
    assert same(teacher.state_dict(), {name: given[name].to(dtype) for name, dtype in dtypes.items()})
    assert dtypes["blocks.0.mlp.up.weight"] == {"fp32": torch.float32, "bf16": torch.bfloat16}[precision]
    assert not teacher.training and not any(weight.requires_grad for weight in teacher.parameters())
    held = sum(weight.nbytes for weight in teacher.parameters())
    assert one.plan_for(1).state_bytes["frozen models (weights alone)"] == held

    saved = checkpoint.load(folder / "whole/checkpoints/step-00000004")
    assert all(saved.groups[name].keys() == one.model().state_dict().keys() for name in ("model", "ema"))
    assert saved.groups.keys() == {"model", "ema", "optimizer"} and len(saved.groups["optimizer"]) == 3 * 10
    assert saved.state["frozen"]["teacher"]["path"] == str(folder / "teacher/step-00000001")
    trained(job(folder, precision=precision), folder / "part", until=2)
    assert start(job(folder, precision=precision), Run(folder / "part", seed=3)).step == 2, "it does not begin anew"
    part = trained(job(folder, precision=precision), folder / "part")
    assert all(same(part.groups()[name], whole.groups()[name]) for name in ("model", "ema", "optimizer"))
    with pytest.raises(UserError, match=r"frozen.teacher.start_from: .*another.* the steps before had .*teacher/step"):
        start(job(folder, "another"), Run(folder / "part", seed=3))


def on_rank(rank: int, folder: Path, plan: dict[str, Any]) -> list[float]:
    """The losses of a step and of one after a resume."""
    fits = [trained(job(folder, **plan), folder / f"run{[*plan]}", until=until) for until in (2, 4)]
    return [fit.result.loss for fit in fits if fit.result is not None]


@pytest.mark.cluster
def test_two_ranks_read_the_teacher_as_one_does(folder: Path) -> None:
    one = on_ranks(1, on_rank, folder, {})[0]
    for plan in ({"shard": 2}, {"replicate": 2}):
        assert on_ranks(2, on_rank, folder, plan) == [pytest.approx(one, rel=1e-5)] * 2


@pytest.mark.parametrize(("start_from", "model", "said"), [
    ("teacher", partial(TEACHER, width=48), "do not fit this model.*teacher.start_from must be a run of the model"),
    ("teacher", partial(TEACHER, depth=1), "unknown: blocks.1.attention"),
    ("none", TEACHER, "There is no checkpoint in .*none"),
    ("teacher", partial(TEACHER, vocab=128), "weights.frozen: the model has a vocabulary of 64 and the teacher of 128"),
])  # fmt: skip
def test_a_teacher_that_is_not_there_or_does_not_fit_is_refused(
    start_from: str, model: Any, said: str, folder: Path
) -> None:
    with pytest.raises(UserError, match=said):
        start(job(folder, start_from, model), Run(folder / "run"))
    with pytest.raises(ValueError, match="leave may_differ out"):
        FrozenModel(model=model, start_from=WarmStart(path=folder, may_differ=["head"]))


@pytest.mark.parametrize(("word", "said"), [
    ("model.vocab=512", "the model has a vocabulary of 512 and the teacher of 384"),
    ("parallel.tensor=2", "use only parallel.replicate and shard"),
    ("engine=megatron", "the megatron engine has no frozen models (weights.frozen)"),
    ("task={_target_: nemo_vfm.language.next_token_task.NextToken}", "NextToken reads no frozen models"),
    ("weights.frozen=null", "Distil reads one frozen model, teacher, but there is none"),
])  # fmt: skip
def test_check_refuses_what_cannot_have_a_teacher(word: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(ROOT / "recipes/llm/distil_stories.yaml"), f"steps.train.{word}"]) == 2
    assert said in " ".join(capsys.readouterr().out.split())
