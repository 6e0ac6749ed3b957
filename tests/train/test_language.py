"""Tests a language model trained on tokens: what it measures, and that ranks and resumes change nothing."""

import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from nemo_vfm.config import build, compose
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.types.job import Run
from nemo_vfm.data.tokenizers.byte_tokenizer import ByteTokenizer
from nemo_vfm.data.tokens.token_writer import write_tokens
from nemo_vfm.language.generation import generate
from nemo_vfm.language.token_choice import Choice
from nemo_vfm.models.gpt import GPT
from nemo_vfm.train.callbacks.preview_texts import PreviewTexts
from nemo_vfm.train.ema import EMA
from nemo_vfm.train.state.train_state import TrainState
from tests.support.ranks import on_ranks
from tests.support.repository import ROOT
from tests.support.tiny_training import metrics

THROUGHPUT = "callbacks={throughput: {_target_: nemo_vfm.train.callbacks.throughput.Throughput}}"
RECIPE = str(ROOT / "recipes/llm/nemotron4_1b.yaml")


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents that count upwards."""
    folder = tmp_path_factory.mktemp("tokens") / "tokens"
    documents = [[(begin + n) % 255 for n in range(3 + begin % 40)] for begin in range(200)]
    write_tokens(folder, documents, vocab_size=257, end=256, tokenizer="t" * 64, per_shard=90)
    return folder


def words(tokens: Path, *more: str) -> list[str]:
    """The recipe on these, a checkpoint at every second step."""
    return [
        f"data.sources.text.folder={tokens}", "data.batch_size=4", "data.packing=documents", "precision=fp32",
        "loop.checkpoint.every_steps=2", "loop.checkpoint.keep_last=null",
        "schedule={_target_: nemo_vfm.train.optim.Constant}", *more,
    ]  # fmt: skip


def trained(rank: int, folder: Path, given: list[str]) -> None:
    composed = compose(RECIPE, given, overlays=["smoke"])
    build(composed).run(Run(folder, composed.to_yaml(), composed.seed))


@pytest.mark.slow  # a training of 30 steps in a process of its own
def test_perplexity_is_that_of_the_vocabulary_at_first_and_falls(tokens: Path, tmp_path: Path) -> None:
    given = words(tokens, "loop.duration=30 steps", "optimizer.lr=1e-2", "loop.checkpoint.every_steps=30", THROUGHPUT)
    on_ranks(1, trained, tmp_path, given)
    measured = [line["val_perplexity"] for line in metrics(tmp_path) if "val_perplexity" in line]
    assert 300 < measured[0] < 600 and measured[-1] < 100
    last = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["tokens_per_s"] == pytest.approx(32 * last["samples_per_s"]) and last["mfu"] > 0
    assert last["val_perplexity"] == pytest.approx(math.exp(last["val_loss"]))


@pytest.mark.cluster
def test_packed_documents_on_two_ranks_resumed_on_one_are_one_run(tokens: Path, tmp_path: Path) -> None:
    on_ranks(1, trained, tmp_path / "alone", words(tokens, "loop.duration=4 steps"))
    on_ranks(2, trained, tmp_path / "both", words(tokens, "loop.duration=2 steps", "parallel.shard=2"))
    before = (tmp_path / "both/metrics.jsonl").read_bytes()
    on_ranks(1, trained, tmp_path / "both", words(tokens, "loop.duration=4 steps"))
    assert (tmp_path / "both/metrics.jsonl").read_bytes().startswith(before), "with the time that each step took"
    ours, alone = (metrics(tmp_path / name) for name in ("both", "alone"))
    assert [line["loss"] for line in ours] == pytest.approx([line["loss"] for line in alone], rel=1e-5)


def test_a_model_with_fewer_words_than_the_tokenizer_is_refused(tokens: Path, tmp_path: Path) -> None:
    composed = compose(RECIPE, words(tokens, "model.vocab=256"), overlays=["smoke"])
    with pytest.raises(UserError, match="the data's tokenizer has 257 tokens, but the model has a vocabulary of 256"):
        build(composed).run(Run(tmp_path, composed.to_yaml(), 0))


def test_texts_are_previewed_when_due_of_the_averaged_weights_and_as_long_as_they_may_be(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, nothing, end = GPT(vocab=257, width=16, depth=1, heads=2, mlp_hidden=16), None, Choice(temperature=0)
    ema = EMA()
    ema.start(model)
    runner = SimpleNamespace(model=model)
    fit = TrainState(Run(tmp_path, seed=5), runner, nothing, nothing, nothing, ema, total_steps=4)  # type: ignore[arg-type]
    with torch.no_grad():
        model.head.weight.zero_()
    common = {"tokenizer": ByteTokenizer(), "prompts": ["One ", "Two ", ""], "every_steps": 2}
    texts = {}
    for name, more in {"drawn": {}, "likeliest": {"choice": end}, "short": {"choice": end, "max_tokens": 3}}.items():
        fit.run = Run(tmp_path / name, seed=5)
        for fit.step in (1, 2, 3, 4):
            PreviewTexts(**common, **more).on_step(fit)
        assert sorted(path.name for path in (tmp_path / name / "samples").iterdir()) == [
            "step-00000002.json", "step-00000004.json"
        ]  # fmt: skip
        texts[name] = json.loads((tmp_path / name / "samples/step-00000002.json").read_text())["texts"]
        assert [one["prompt"] for one in texts[name]] == common["prompts"] and model.training
    for name, most in (("short", 3), ("likeliest", 128)):
        with ema.apply_to(model):
            tokens = generate(model.eval(), [(*b"One ",)], max_new=most, choice=end, seeds=[0], stop=frozenset([256]))
        text = ByteTokenizer().decode(tokens[0])
        assert texts[name][0]["text"] == text, "with zeros for a head, all would be byte 0"
    assert len(texts["short"][0]["text"]) <= 3 and texts["drawn"] != texts["likeliest"]
