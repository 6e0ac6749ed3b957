"""Tests that tokenizer folders give the tokens and texts of transformers' AutoTokenizer."""

import copy
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nemo_vfm.core import process
from nemo_vfm.core.errors import DataError, MissingPackage, UserError
from nemo_vfm.core.types.encoders import Tokenizer
from nemo_vfm.data.tokenizers import special_tokens, tokenizers_library, trial
from nemo_vfm.data.tokenizers.folder_tokenizer import FolderTokenizer
from tests.support import tiny_tokenizers
from tests.support.tiny_tokenizers import LINES, TEXTS

transformers = pytest.importorskip("transformers", reason="needs the extra transformers")
KINDS: dict[str, Callable[[Path], Path]] = {
    "byte-level": tiny_tokenizers.byte_level,
    "byte-level, digits apart": lambda folder: tiny_tokenizers.byte_level(folder, split_digits=True),
    "metaspace": tiny_tokenizers.metaspace,
    "unigram": tiny_tokenizers.unigram,
    "sentencepiece bpe": tiny_tokenizers.sentence_piece,
    "sentencepiece unigram": lambda folder: tiny_tokenizers.sentence_piece(folder, "unigram"),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {kind: make(tmp_path_factory.mktemp("kind") / "it") for kind, make in KINDS.items()}


def theirs(folder: Path) -> transformers.PreTrainedTokenizerBase:
    return transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)


def same(folder: Path, texts: list[str]) -> bool:
    """Whether both give these tokens and these texts."""
    ours, other = FolderTokenizer(folder=folder), theirs(folder)
    tokens = ours.encode(texts)
    assert tokens == [other.encode(text, add_special_tokens=False) for text in texts]
    assert [ours.decode(one) for one in tokens] == other.batch_decode(tokens, skip_special_tokens=True)
    assert ours.end() == other.eos_token_id and ours.vocab_size() == max(other.get_vocab().values()) + 1
    return True


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.startswith("sentencepiece")])
def test_tokens_and_texts_are_those_of_transformers(kind: str, folders: dict[str, Path]) -> None:
    assert same(folders[kind], TEXTS)


@pytest.mark.parametrize("kind", KINDS)
def test_the_bytes_of_tokens_are_the_bytes_of_the_text(kind: str, folders: dict[str, Path]) -> None:
    tokenizer = FolderTokenizer(folder=folders[kind])
    known = tokenizer.token_bytes()
    assert len(known) == tokenizer.vocab_size()
    for tokens in tokenizer.encode(LINES):
        joined = b"".join(known[token] or b"" for token in tokens).decode()
        assert joined.lstrip(" ") == tokenizer.decode(tokens).lstrip(" "), "some put a space in front"
    halves = [one for one in known if one is not None and "\ufffd" in one.decode(errors="replace")]
    assert len(halves) >= 128 or "byte" not in kind, "each part of a letter is itself"


@pytest.mark.parametrize("kind", ["sentencepiece bpe", "sentencepiece unigram"])
def test_a_model_of_sentencepiece_is_read_by_sentencepiece(kind: str, folders: dict[str, Path]) -> None:
    import sentencepiece

    other = sentencepiece.SentencePieceProcessor(model_file=str(folders[kind] / "tokenizer.model"))
    ours = FolderTokenizer(folder=folders[kind])
    assert ours.encode(TEXTS) == other.encode(TEXTS)
    assert ours.decode([other.bos_id(), *other.encode(LINES[0]), other.unk_id(), other.eos_id()]) == LINES[0]
    assert (ours.vocab_size(), ours.end()) == (other.get_piece_size(), other.eos_id())


def test_bpe_of_sentencepiece_gives_the_tokens_of_a_llama(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = shutil.copytree(folders["sentencepiece bpe"], tmp_path / "llama")
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "LlamaTokenizer"}')
    # Spaces in front, and names of tokens in a text, are where transformers departs from SentencePiece itself.
    texts = [text for text in TEXTS if not text.startswith((" ", "▁")) and "</s>" not in text]
    assert len(texts) > 15 and same(folder, texts)


# Llama's pieces lose one of two spaces in front, and unigram as of T5 what its normaliser changes.
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("metaspace", "unigram")])
def test_what_was_encoded_decodes_to_itself(kind: str, folders: dict[str, Path]) -> None:
    ours = FolderTokenizer(folder=folders[kind])
    assert [ours.decode(tokens) for tokens in ours.encode(LINES)] == LINES


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_is_a_tokenizer_that_travels_without_what_it_loaded(kind: str, folders: dict[str, Path]) -> None:
    ours = FolderTokenizer(folder=folders[kind])
    ours.encode(LINES)
    copied = copy.deepcopy(ours)
    assert isinstance(ours, Tokenizer) and vars(copied) == {"folder": folders[kind], "end_token": None}
    assert copied.encode(LINES) == ours.encode(LINES)


@pytest.mark.parametrize("name", ["additional_special_tokens", "extra_special_tokens"])
def test_special_tokens_are_read_under_their_old_and_their_new_name(name: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({name: ["<a>", {"content": "<b>"}], "eos_token": "<e>"}))
    found = special_tokens.read(tmp_path)
    assert {one.content for one in found.added if one.special} == {"<a>", "<b>", "<e>"}
    assert found.roles == {"eos_token": "<e>"}


def test_code_that_a_folder_brings_is_not_run(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = shutil.copytree(folders["byte-level"], tmp_path / "brings")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config |= {"auto_map": {"AutoTokenizer": ["theirs.Theirs", "theirs.Theirs"]}, "tokenizer_class": "Theirs"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "theirs.py").write_text(f"open({str(tmp_path / 'canary')!r}, 'w')")
    assert FolderTokenizer(folder=folder).encode(TEXTS) == FolderTokenizer(folder=folders["byte-level"]).encode(TEXTS)
    assert not (tmp_path / "canary").exists()


def test_nothing_is_read_before_the_first_use(tmp_path: Path) -> None:
    ours = FolderTokenizer(folder=tmp_path / "nowhere")
    with pytest.raises(UserError, match="nothing is downloaded automatically"):
        ours.encode(["a"])


def test_a_fingerprint_is_of_bytes_and_not_of_places(folders: dict[str, Path], tmp_path: Path) -> None:
    ours = FolderTokenizer(folder=folders["byte-level"])
    moved = shutil.copytree(folders["byte-level"], tmp_path / "moved")
    assert FolderTokenizer(folder=moved).fingerprint() == ours.fingerprint()
    assert FolderTokenizer(folder=moved, end="<|pad|>").fingerprint() != ours.fingerprint()
    config = moved / "tokenizer_config.json"
    config.write_text(config.read_text().replace("<|end|>", "<|begin|>"))
    changed = FolderTokenizer(folder=moved)
    assert changed.fingerprint() != ours.fingerprint() and changed.end() != ours.end()  # read anew, too


def test_truncation_that_a_file_asks_for_cuts_no_document(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = shutil.copytree(folders["byte-level"], tmp_path / "cut")
    content = json.loads((folder / "tokenizer.json").read_text())
    content["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    content["padding"] = {"strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
                          "pad_type_id": 0, "pad_token": "<|begin|>"}  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(content))
    assert FolderTokenizer(folder=folder).encode(TEXTS) == FolderTokenizer(folder=folders["byte-level"]).encode(TEXTS)


def test_tokens_that_only_the_config_adds_are_found_as_transformers_finds_them(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(folders["byte-level"], tmp_path / "more")
    size = FolderTokenizer(folder=folder).vocab_size()
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["added_tokens_decoder"] = {str(size): {"content": "<|tool|>", "lstrip": True, "special": True},
                                      str(size + 1): {"content": "kitten", "special": False}}  # fmt: skip
    config["eos_token"] = {"content": "<|turn|>", "special": True, "__type": "AddedToken"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    texts = [*TEXTS, "a <|tool|> b", "two kittens<|turn|>\n", "cat <|end|>"]
    assert same(folder, texts)
    assert FolderTokenizer(folder=folder).encode(["kitten"]) == [[size + 1]]


@pytest.mark.parametrize("newer", [False, True])
def test_files_that_contradict_each_other_are_read_in_the_order_of_transformers(
    newer: bool, folders: dict[str, Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(folders["byte-level"], tmp_path / "two")
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>"}
    more = {"added_tokens_decoder": {"1": {"content": "<|end|>", "special": True}}} if newer else {}
    (folder / "tokenizer_config.json").write_text(json.dumps(config | more))
    (folder / "special_tokens_map.json").write_text('{"eos_token": {"content": "<|begin|>", "lstrip": false}}')
    assert same(folder, TEXTS) and FolderTokenizer(folder=folder).end() == (1 if newer else 0)


def test_a_beginning_that_a_file_puts_before_each_text_is_left_out(folders: dict[str, Path], tmp_path: Path) -> None:
    from tokenizers import Tokenizer, processors

    folder = shutil.copytree(folders["byte-level"], tmp_path / "begins")
    made = Tokenizer.from_file(str(folder / "tokenizer.json"))
    made.post_processor = processors.TemplateProcessing(single="<|begin|> $A", special_tokens=[("<|begin|>", 0)])
    made.save(str(folder / "tokenizer.json"))
    assert theirs(folder).encode("cat")[0] == 0 and same(folder, TEXTS)


def test_which_token_ends_a_document_is_asked_for_where_nobody_says(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = shutil.copytree(folders["byte-level"], tmp_path / "silent")
    (folder / "tokenizer_config.json").unlink()
    with pytest.raises(UserError, match="silent defines the token that ends a text; set `end`"):
        FolderTokenizer(folder=folder).end()
    with pytest.raises(UserError, match="has no token '<eot>', which should end"):
        FolderTokenizer(folder=folder, end="<eot>").end()
    assert FolderTokenizer(folder=folder, end="<|end|>").end() == 1
    piece = folders["sentencepiece bpe"]
    assert FolderTokenizer(folder=piece, end="<s>").end() == 1
    with pytest.raises(UserError, match="has no token '<eot>', which should end"):
        FolderTokenizer(folder=piece, end="<eot>").end()


@pytest.mark.parametrize("kind", ["byte-level", "sentencepiece bpe"])
def test_half_a_surrogate_pair_is_a_question_mark(kind: str, folders: dict[str, Path]) -> None:
    ours = FolderTokenizer(folder=folders[kind])
    assert ours.encode(["the \ud800cat"]) == ours.encode(["the ?cat"])


@pytest.mark.parametrize("kind", ["byte-level", "sentencepiece bpe"])
def test_rows_that_a_model_has_besides_say_nothing(kind: str, folders: dict[str, Path]) -> None:
    ours = FolderTokenizer(folder=folders[kind])
    tokens = ours.encode(LINES[:1])[0]
    assert ours.decode([*tokens[:3], ours.vocab_size(), 10**6, *tokens[3:]]) == LINES[0]
    with pytest.raises(ValueError, match="-1 is not a token"):
        ours.decode([3, -1])


@pytest.mark.parametrize("content", [b"", b"{}", b"[" * 100_000, b'{"version": "1.0", "model": 3}', b"\xff\xfe"])
@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer.model"])
def test_a_damaged_file_is_a_sentence(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=rf"{name} of .* cannot be read"):
        FolderTokenizer(folder=tmp_path).encode(["a"])


@pytest.mark.parametrize("content", ["[]", "{", '{"added_tokens_decoder": {"x": 3}}', '{"eos_token": {"text": 1}}'])
def test_a_damaged_config_is_a_sentence(content: str, folders: dict[str, Path], tmp_path: Path) -> None:
    folder = shutil.copytree(folders["byte-level"], tmp_path / "bad")
    (folder / "tokenizer_config.json").write_text(content)
    with pytest.raises(DataError, match="bad"):
        FolderTokenizer(folder=folder).encode(["a"])


def test_numbers_that_do_not_fit_the_tokenizer_are_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = shutil.copytree(folders["byte-level"], tmp_path / "other")
    config = folder / "tokenizer_config.json"
    config.write_text('{"added_tokens_decoder": {"7": {"content": "<|end|>", "special": true}}}')
    with pytest.raises(DataError, match=r"gives '<\|end\|>' the number 7, and tokenizer\.json 1"):
        FolderTokenizer(folder=folder).encode(["a"])
    piece = shutil.copytree(folders["sentencepiece bpe"], tmp_path / "piece")
    (piece / "added_tokens.json").write_text('{"<|tool|>": 5000}')
    with pytest.raises(UserError, match=r"adds 1 tokens to its tokenizer\.model, such as '<\|tool\|>'"):
        FolderTokenizer(folder=piece).encode(["a"])


def test_a_folder_without_a_tokenizer_and_a_missing_library_are_sentences(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "vocab.json").write_text("{}")
    with pytest.raises(
        UserError, match=r"neither tokenizer\.json nor tokenizer\.model.*save it once with transformers"
    ):
        FolderTokenizer(folder=tmp_path).vocab_size()
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    copied = shutil.copytree(folders["byte-level"], tmp_path / "copied")
    with pytest.raises(MissingPackage, match=r"pip install .*'nemo_vfm\[text\]'"):
        FolderTokenizer(folder=copied).vocab_size()


#: What a foreign tokenizer.json says instead of a usual one -> what is said about it.
HOSTILE: dict[str, tuple[dict[str, object], str]] = {
    "a letter becomes 10^10": ({"normalizer": {"type": "Sequence", "normalizers": [
        {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 100}] * 5}}, "its normalizer turns"),
    "a rare letter does": ({"normalizer": {"type": "Sequence", "normalizers": [
        {"type": "Replace", "pattern": {"String": "\u0436"}, "content": "\u0436" * 100}] * 5}}, "10,000,000,000"),
    "a pattern does": ({"normalizer": {"type": "Replace", "pattern": {"Regex": "."}, "content": "x" * 1000}}, "turns"),
    "text before each text": ({"normalizer": {"type": "Prepend", "prepend": "x" * 10**6}}, "its normalizer turns"),
    "decoded": ({"decoder": {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 1000}}, "its decoder"),
    "no pattern": ({"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(("}, "behavior": "Isolated",
                                      "invert": False}}, "cannot be read: "),
    "a long token": ({"added_tokens": [{"id": 399, "content": "x" * 10**6, "single_word": False, "lstrip": False,
        "rstrip": False, "normalized": False, "special": False}]}, "a token of 1,000,000 characters"),
}  # fmt: skip


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_tokenizer_is_a_sentence_and_not_the_end_of_the_process(
    what: str, folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tokenizers.py").write_text("raise ValueError('which is not the library')")
    changes, said = HOSTILE[what]
    folder = tmp_path / "hostile"
    shutil.copytree(folders["byte-level"], folder)
    told = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps(told | changes))
    with pytest.raises(DataError, match=said):
        FolderTokenizer(folder=folder).encode(["a"])


@pytest.mark.parametrize(
    ("harm", "said"),
    [("import os; os.abort()", "was killed by SIGABRT"),
     pytest.param("while True: pass", "was killed by SIG(KILL|XCPU)", marks=pytest.mark.slow),
     ("x = bytearray(1 << 36)", "MemoryError")],
    ids=["aborts", "never ends", "takes memory"],
)  # fmt: skip
def test_a_library_that_does_not_come_back_is_a_sentence(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch, harm: str, said: str
) -> None:
    wrong = f"from nemo_vfm.data.tokenizers import trial; trial._try_json = lambda path: exec({harm!r})"
    monkeypatch.setattr(process, "_START", f"{process._START}; {wrong}")
    monkeypatch.setattr(trial, "_CPU_S", 1)
    with pytest.raises(DataError, match=f"tokenizer.json of it cannot be read: .*{said}"):
        trial.require_sound(folders["byte-level"] / "tokenizer.json")


def test_a_panic_of_the_library_is_an_error_as_others_are() -> None:
    class PanicException(BaseException):
        pass

    class Panics:
        def get_vocab(self, **_: bool) -> dict[str, int]:
            return {"a": 0}

        def __getattr__(self, name: str) -> Callable[..., object]:
            def panic(*_: object, **__: object) -> None:
                raise PanicException("index out of bounds")

            return panic

    made = tokenizers_library.HuggingFace(Panics(), {}, "theirs")
    uses: list[Callable[[], object]] = [
        lambda: made.encode(["a"]), lambda: made.encode_with_offsets("a", names=True), lambda: made.decode([0])
    ]  # fmt: skip
    for use in uses:
        with pytest.raises(DataError, match=r"of theirs cannot be used: index out of bounds"):
            use()
