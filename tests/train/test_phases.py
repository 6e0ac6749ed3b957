"""Tests that phases with their own devices and learning rates make one training and one run."""

import itertools
import json
from pathlib import Path

import pytest

from nemo_vfm.cli.main import main
from nemo_vfm.core.duration import Duration
from nemo_vfm.data.tokens.token_data import TokenData, TokenSource
from nemo_vfm.data.tokens.token_writer import write_tokens
from nemo_vfm.parallel.checkpoint import checkpoint
from nemo_vfm.parallel.plan.plan import ParallelPlan
from nemo_vfm.train.optim import Constant, Straight, WarmupCosine
from nemo_vfm.train.phases import InPhases, Phase, at, data_of, stretches
from tests.support import preloaded, tiny_training
from tests.support.ranks import on_ranks
from tests.support.repository import ROOT
from tests.support.tiny_training import changes, command, metrics, trained

NAME = "nemo_vfm.train.phases.Phase"


class Videos:
    """Data of one kind of batch."""

    def start(self, **_: int) -> None: ...


def phases(**given: Phase):
    return stretches(given, Videos(), ParallelPlan())  # type: ignore[arg-type]


def steps(count: int, **other: object) -> Phase:
    return Phase(duration=Duration(count, "steps"), **other)  # type: ignore[arg-type]


def test_a_schedule_goes_on_over_phases_and_around_those_with_one_of_their_own() -> None:
    found = phases(one=steps(10), own=steps(4, schedule=Straight(begin=0.5, end=0.2)), two=steps(10))
    whole = WarmupCosine(warmup_steps=3)
    factors = [InPhases(found, whole).factor(step, None) for step in range(24)]
    expected = [whole.factor(step, 20) for step in range(20)]
    assert factors[:10] + factors[14:] == pytest.approx(expected)
    assert factors[10:14] == pytest.approx([0.5, 0.4, 0.3, 0.2])


def test_a_step_has_one_phase_and_the_end_has_the_last() -> None:
    found = phases(one=steps(2), two=steps(3))
    assert [at(found, step).name for step in range(6)] == ["one", "one", "two", "two", "two", "two"]


def test_what_the_data_cannot_do_is_said_before_anything_runs() -> None:
    with pytest.raises(ValueError, match="phase two changes batch_size or blend, but Videos cannot"):
        phases(one=steps(2), two=steps(3, batch_size=8))
    with pytest.raises(
        ValueError, match="Videos does not define how much a step reads; give the phase's duration in steps"
    ):
        phases(one=Phase(duration=Duration(5, "tokens")))
    with pytest.raises(ValueError, match="a phase's duration must be in tokens, samples or steps, got 5 s"):
        Phase(duration=Duration(5, "s"))


def test_a_constant_rate_warms_up_once() -> None:
    found = phases(one=steps(3), two=steps(3))
    rates = [InPhases(found, Constant(warmup_steps=4)).factor(step, None) for step in range(6)]
    assert rates == pytest.approx([0.25, 0.5, 0.75, 1, 1, 1])


@pytest.fixture
def tokens(tmp_path: Path) -> TokenData:
    """Two sources of sixty documents each."""
    for name in ("web", "code"):
        documents = [[number % 50] * (5 + number % 9) for number in range(60)]
        write_tokens(tmp_path / name, documents, vocab_size=64, end=63, tokenizer="t" * 64, per_shard=40)
    sources = {name: TokenSource(tmp_path / name, weight) for name, weight in (("web", 3.0), ("code", 1.0))}
    return TokenData(sources=sources, sequence_length=8, batch_size=2)


def test_batches_grow_and_the_blend_turns_while_each_source_goes_on_where_it_was(tokens: TokenData) -> None:
    sized = Phase(duration=Duration(64, "tokens"))
    turned = Phase(duration=Duration(24, "samples"), batch_size=6, blend={"web": 1.0, "code": 5.0})
    found = stretches({"small": sized, "large": turned}, tokens, ParallelPlan())
    assert [(one.first, one.last) for one in found] == [(0, 4), (4, 8)]
    batches = []
    for one in found:
        data = data_of(tokens, found, one, seed=3)
        data.start(seed=3, first_batch=one.first)
        batches += itertools.islice(data.train_dataloader(), one.last - one.first)
    assert [(batch.index, len(batch)) for batch in batches] == [
        *((n, 2) for n in range(4)),
        *((n, 6) for n in range(4, 8)),
    ]
    for name, counts in (("web", (6, 4)), ("code", (2, 20))):
        rows = [int(key.rsplit("-", 1)[1]) for batch in batches for key in batch.keys if key.startswith(name)]
        assert rows == list(range(sum(counts)))
    again = data_of(tokens, found, found[1], seed=3)
    again.start(seed=3, first_batch=6)
    assert next(iter(again.train_dataloader())).keys == batches[6].keys


def test_a_training_cut_short_ends_within_a_phase() -> None:
    given = {"one": steps(3), "two": steps(3), "three": steps(3)}
    found = stretches(given, Videos(), ParallelPlan(), Duration(4, "steps"))  # type: ignore[arg-type]
    assert [(one.name, one.first, one.end, one.last) for one in found] == [("one", 0, 3, 3), ("two", 3, 4, 6)]


def test_a_check_lists_the_phases_and_says_whose_batches_cannot_be_shared(capsys: pytest.CaptureFixture[str]) -> None:
    recipe = str(ROOT / "recipes/llm/nemotron4_340b.yaml")
    assert main(["check", recipe, "--gpus", "6144"]) == 0
    assert "phase small: steps 1 to 63,579 on 1,536 devices" in " ".join(capsys.readouterr().out.split())
    assert main(["check", recipe, "loop.phases.main.batch_size=2300"]) == 2
    said = " ".join(capsys.readouterr().out.split())
    assert "batch_size of phase main 2300 cannot be divided among 64 data ranks" in said and "would fit" in said


def asked(*each: str) -> str:
    """A change that gives a run these phases, of two steps each."""
    inside = ", ".join(f"p{n}: {{_target_: {NAME}, duration: 2 steps{more}}}" for n, more in enumerate(each))
    return f"loop.phases={{{inside}}}"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_training.shards(tmp_path_factory.mktemp("data") / "shards")


def run(words: list[str]) -> tuple[int, str]:
    done = preloaded.run(words, timeout=400)
    return done.returncode, " ".join(done.stderr.split())


@pytest.mark.cluster
def test_one_command_goes_through_phases_on_one_and_two_devices_and_all_is_as_on_one(
    data: Path, tmp_path: Path
) -> None:
    two = ", parallel: {_target_: nemo_vfm.parallel.plan.plan.ParallelPlan, shard: 2}"
    status, said = run(command(data, tmp_path / "run", "loop.duration=null", asked("", two)))
    assert status == 0, said
    assert "phase p1 is for 2 devices, but there are 1" in said and "resuming at step 2" in said
    assert json.loads((tmp_path / "run/status.json").read_text())["state"] == "done"
    on_ranks(1, trained, changes(data, tmp_path / "alone", steps=4))
    ours, theirs = metrics(tmp_path / "run"), metrics(tmp_path / "alone")
    assert [line["step"] for line in ours] == [1, 2, 3, 4]
    assert [line["loss"] for line in ours] == pytest.approx([line["loss"] for line in theirs], rel=1e-5)
    saved = checkpoint.open_latest(tmp_path / "run/checkpoints")
    assert saved is not None and saved.step == 4
    assert len(list((tmp_path / "run/ranks").iterdir())) == 1, "the second phase had a second rank"
