"""Tests that training a tokenizer is reproducible, agrees with transformers, and loses nothing."""

import inspect
import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nemo_vfm.core.errors import DataError, NothingKept, UserError
from nemo_vfm.core.types.job import Job, Run
from nemo_vfm.data.tokenizers.folder_tokenizer import FolderTokenizer
from nemo_vfm.synth.make_stories import story
from nemo_vfm.text.bpe_learner import ByteLevelBPE
from nemo_vfm.text.documents import Documents
from nemo_vfm.text.learner import Learner
from nemo_vfm.text.sentencepiece_learner import SentencePieceModel
from nemo_vfm.text.train_tokenizer import TrainTokenizer
from tests.support.tiny_tokenizers import LINES, TEXTS

LEARNERS: dict[str, Callable[[], Learner]] = {
    "byte-level": lambda: ByteLevelBPE(vocab_size=400, special_tokens=["<|user|>", "<|tool|>"]),
    "unigram": lambda: SentencePieceModel(vocab_size=400, special_tokens=["<|user|>"]),
    "bpe": lambda: SentencePieceModel(vocab_size=450, kind="bpe", leading_space=False),
}


def documents(folder: Path) -> Documents:
    """Stories, and lines with letters of all kinds."""
    rows = [{"text": text} for text in [*(story(0, number).text for number in range(150)), *LINES]]
    folder.mkdir(exist_ok=True)
    (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Documents(path=folder)


@pytest.fixture(scope="module")
def learnt(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("learnt")
    for kind, make in LEARNERS.items():
        (folder / kind).mkdir()
        TrainTokenizer(documents=documents(folder / "texts"), learner=make()).run(Run(folder / kind))
    return {kind: folder / kind for kind in LEARNERS}


def some_texts(count: int) -> list[str]:
    """Texts that nobody wrote."""
    draw = random.Random(0)
    letters = "ab  \n\t▁<0x41>é東🦊\u200d.sth1234567890"
    return ["".join(draw.choice(letters) for _ in range(draw.randrange(40))) for _ in range(count)]


@pytest.mark.parametrize("kind", LEARNERS)
def test_transformers_loads_it_and_gives_the_same_tokens_and_texts(kind: str, learnt: dict[str, Path]) -> None:
    transformers = pytest.importorskip("transformers", reason="needs the extra transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(learnt[kind] / "tokenizer", local_files_only=True)
    ours = FolderTokenizer(folder=learnt[kind] / "tokenizer")
    texts = [*TEXTS, *some_texts(300), "<|user|> asks", "a <|tool|> b"]
    tokens = ours.encode(texts)
    assert tokens == [theirs.encode(text, add_special_tokens=False) for text in texts]
    assert [ours.decode(one) for one in tokens] == theirs.batch_decode(tokens, skip_special_tokens=True)
    assert ours.end() == theirs.eos_token_id and ours.vocab_size() == len(theirs) == LEARNERS[kind]().vocab_size
    assert len(ours.encode(["7654"])[0]) == 4 + (kind == "unigram")  # each digit, and the space that it puts in front
    assert len(ours.encode(["<|user|>"])[0]) == (1 if kind != "bpe" else 8)


@pytest.mark.parametrize("kind", LEARNERS)
def test_no_text_is_lost(kind: str, learnt: dict[str, Path]) -> None:
    ours = FolderTokenizer(folder=learnt[kind] / "tokenizer")
    texts = [text for text in [*TEXTS, *some_texts(300)] if kind == "byte-level" or not ("▁" in text or "</s>" in text)]
    assert len(texts) > 100 and [ours.decode(tokens) for tokens in ours.encode(texts)] == texts


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_both_files_of_sentencepiece_give_the_same_tokens(kind: str, learnt: dict[str, Path]) -> None:
    import sentencepiece

    theirs = sentencepiece.SentencePieceProcessor(model_file=str(learnt[kind] / "tokenizer/tokenizer.model"))
    spelt = ["a <0x41> b", "<0x0A>"]  # the name of a byte is no byte
    texts = [
        text for text in [*TEXTS, *spelt, *some_texts(300)] if "</s>" not in text
    ]  # only transformers finds it in a text
    ours = FolderTokenizer(folder=learnt[kind] / "tokenizer").encode(texts)
    for text, one, other in zip(texts, ours, theirs.encode(texts), strict=True):
        # Runs of spaces may be cut into the same pieces in another order, which are equally likely.
        assert one == other or (kind == "unigram" and "  " in text and sorted(one) == sorted(other)), text
    assert sum(one == other for one, other in zip(ours, theirs.encode(texts), strict=True)) > 0.98 * len(texts)


@pytest.mark.slow  # trains every kind of tokenizer again
def test_the_same_documents_give_the_same_bytes_on_any_number_of_threads(
    learnt: dict[str, Path], tmp_path: Path
) -> None:
    code = (
        "import sys, pathlib; from tests.text.test_train_tokenizer import *\n"
        "folder = pathlib.Path(sys.argv[1])\n"
        "for kind, make in LEARNERS.items():\n"
        "    TrainTokenizer(documents=documents(folder / 'texts'), learner=make()).run(Run(folder / kind))"
    )
    environment = os.environ | {"RAYON_NUM_THREADS": "1", "PYTHONHASHSEED": "7"}
    subprocess.run([sys.executable, "-c", code, tmp_path], check=True, env=environment, capture_output=True)
    for kind, folder in learnt.items():
        for file in (folder / "tokenizer").iterdir():
            assert (tmp_path / kind / "tokenizer" / file.name).read_bytes() == file.read_bytes(), file.name


def test_what_it_found_is_told_and_not_done_twice(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    job = TrainTokenizer(documents=documents(tmp_path / "texts"), learner=LEARNERS["byte-level"]())
    first = job.run(Run(tmp_path))
    assert isinstance(job, Job) and not first.did_nothing
    tokenizer = FolderTokenizer(folder=tmp_path / "tokenizer")
    texts = [*(story(0, number).text for number in range(150)), *LINES]
    tokens = sum(map(len, tokenizer.encode(texts)))
    assert first.figures["bytes_per_token"] == pytest.approx(sum(len(text.encode()) for text in texts) / tokens)
    assert first.figures["tokens_per_word"] == pytest.approx(tokens / sum(len(text.split()) for text in texts))
    assert first.figures["bytes_per_token"] > 2.5 and first.figures["documents"] == 156
    manifest = json.loads((tmp_path / "tokenizer/manifest.json").read_text())
    assert manifest["fingerprint"] == tokenizer.fingerprint() and manifest["end"] == tokenizer.end()
    again = job.run(Run(tmp_path))
    assert again.did_nothing and (again.figures, again.summary) == (first.figures, first.summary)


def test_texts_that_have_not_so_many_tokens_are_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    outcome = TrainTokenizer(documents=documents(tmp_path / "t"), learner=ByteLevelBPE(vocab_size=9000)).run(
        Run(tmp_path)
    )
    assert outcome.figures["vocab_size"] < 2000 and "9,000 tokens were requested, but these texts" in caplog.text


def test_a_changed_file_other_documents_and_a_kill_are_noticed(tmp_path: Path) -> None:
    job = TrainTokenizer(documents=documents(tmp_path / "texts"), learner=LEARNERS["byte-level"]())
    job.run(Run(tmp_path))
    whole = (tmp_path / "tokenizer/tokenizer.json").read_bytes()
    (tmp_path / "tokenizer/tokenizer.json").write_bytes(whole[:-10])
    assert not job.run(Run(tmp_path)).did_nothing
    (tmp_path / "texts/b.txt").write_text("more")
    (tmp_path / ".tokenizer.tmp").mkdir()  # as a kill leaves it
    (tmp_path / ".tokenizer.tmp/left.json").write_text("{}")
    assert not job.run(Run(tmp_path)).did_nothing and job.run(Run(tmp_path)).did_nothing
    assert not list(tmp_path.glob("*/left.json"))


def test_every_setting_that_changes_a_tokenizer_is_part_of_what_it_is_made_of(tmp_path: Path) -> None:
    """A tokenizer of other settings is no reason to do nothing."""
    path = documents(tmp_path / "texts").path
    sources = [Documents(path=path), Documents(path=path, column="a"), Documents(path=path, max_document_mb=1.0)]
    learners: list[Learner] = [
        ByteLevelBPE(vocab_size=300), ByteLevelBPE(vocab_size=301), ByteLevelBPE(vocab_size=300, end="<end>"),
        ByteLevelBPE(vocab_size=300, special_tokens=["<a>"]), ByteLevelBPE(vocab_size=300, split_digits=False),
        ByteLevelBPE(vocab_size=300, min_frequency=3),
    ]  # fmt: skip
    jobs = [(TrainTokenizer(documents=source, learner=learners[0]), 0) for source in sources]
    jobs += [(TrainTokenizer(documents=sources[0], learner=learner), 0) for learner in learners[1:]]
    jobs += [(TrainTokenizer(documents=sources[0], learner=learners[0], share=0.5), seed) for seed in (0, 1)]
    found = [json.dumps(job._provenance(seed)) for job, seed in jobs]
    assert len(set(found)) == len(found) == 10
    assert (
        len({json.dumps(TrainTokenizer(documents=sources[0], learner=learners[0])._provenance(n)) for n in (0, 1)}) == 1
    )
    (path / "b.txt").write_text("more")
    assert json.dumps(jobs[0][0]._provenance(0)) != found[0]


@pytest.mark.parametrize(("kind", "base", "others"), [
    (ByteLevelBPE, {"vocab_size": 300}, {
        "vocab_size": 301, "end": "<end>", "special_tokens": ["<a>"], "split_digits": False, "min_frequency": 50,
    }),
    (SentencePieceModel, {"vocab_size": 320, "character_coverage": 1.0}, {
        "vocab_size": 330, "kind": "bpe", "special_tokens": ["<a>"], "split_digits": False, "byte_fallback": False,
        "leading_space": False, "character_coverage": 0.98,
    }),
])  # fmt: skip
def test_every_setting_of_a_learner_gives_another_tokenizer(
    kind: type, base: dict[str, Any], others: dict[str, Any], tmp_path: Path
) -> None:
    texts = [*(story(0, number).text for number in range(8)), "12 123 1234 " * 60, "\u4e2d\u6587"]
    spelt = ["the 1234 ways", " so", "\u4e2d \u6587", "\U0001f98a"]

    def learnt(name: str, settings: dict[str, Any]) -> tuple[dict[str, bytes], list[str]]:
        folder = tmp_path / name
        folder.mkdir()
        kind(**settings).learn(texts, folder)
        found = FolderTokenizer(folder=folder)
        return {path.name: path.read_bytes() for path in folder.iterdir()}, [*map(found.decode, found.encode(spelt))]

    assert set(others) == set(inspect.signature(kind).parameters), "give a new setting another value"
    files, texts_again = learnt("plain", base)
    assert texts_again == spelt and learnt("again", base) == (files, spelt)
    for name, value in others.items():
        found, texts_again = learnt(name, base | {name: value})
        assert found != files, name
        assert (texts_again == spelt) == (name != "byte_fallback"), name  # without it the last letter is lost


def test_a_share_is_another_one_with_another_seed(tmp_path: Path) -> None:
    job = TrainTokenizer(documents=documents(tmp_path / "texts"), learner=ByteLevelBPE(vocab_size=300), share=0.5)
    figures = [job.run(Run(tmp_path, seed=seed)).figures for seed in (0, 1)]
    assert figures[0]["bytes"] != figures[1]["bytes"]
    assert all(50 < one["documents"] < 106 for one in figures)


@pytest.mark.parametrize("kind", LEARNERS)
@pytest.mark.parametrize(("lines", "error", "said"), [
    ('{"text": " "}\n', NothingKept, "no document with text"),
    ('{"text": "a"}\n' + "{\n" * 20, DataError,
     r"^16 documents in a row up to number 17 of .*a\.jsonl are bad: not JSON; repair the file, or leave it out$"),
], ids=["nothing", "bad"])  # fmt: skip
def test_nothing_to_learn_from_and_bad_documents_are_said_by_every_learner_in_the_same_words(
    kind: str, lines: str, error: type[Exception], said: str, tmp_path: Path
) -> None:
    (tmp_path / "a.jsonl").write_text(lines)
    with pytest.raises(error, match=said):
        TrainTokenizer(documents=Documents(path=tmp_path), learner=LEARNERS[kind]()).run(Run(tmp_path))
    assert not (tmp_path / "tokenizer").exists()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: ByteLevelBPE(vocab_size=256), "vocab_size is 256, but bytes"),
        (lambda: ByteLevelBPE(vocab_size=400, special_tokens=["<|endoftext|>"]), "needs its own name"),
        (lambda: ByteLevelBPE(vocab_size=400, min_frequency=0), "min_frequency"),
        (lambda: SentencePieceModel(vocab_size=278), "vocab_size is 278"),
        (lambda: SentencePieceModel(vocab_size=400, kind="word"), "unigram or bpe"),
        (lambda: SentencePieceModel(vocab_size=400, special_tokens=["</s>"]), "needs its own name"),
        (lambda: SentencePieceModel(vocab_size=400, character_coverage=1.5), "character_coverage"),
        (lambda: SentencePieceModel(vocab_size=400, character_coverage=0.97), "character_coverage"),
    ],
)
def test_settings_that_cannot_be_are_refused(make: Callable[[], Learner], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make()


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_texts_of_more_letters_than_tokens_are_said_in_a_sentence(kind: Any, tmp_path: Path) -> None:
    letters = "".join(chr(0x4E00 + number) for number in range(500))
    with pytest.raises(UserError, match=r"cannot learn 320 tokens .*320 vs .*Increase vocab_size"):
        SentencePieceModel(vocab_size=320, kind=kind, character_coverage=1.0).learn([letters], tmp_path)


def test_a_line_longer_than_the_trainer_takes_is_learnt_from_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(" ".join(["extraordinary"] * 5000))  # 70,000 bytes without a line break
    SentencePieceModel(vocab_size=300).learn(Documents(path=tmp_path).texts(Counter()), tmp_path)
    assert len(FolderTokenizer(folder=tmp_path).encode(["extraordinary"])[0]) < 13
