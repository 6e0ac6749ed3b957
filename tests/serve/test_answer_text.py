"""Tests that text written token by token is the text of all tokens, and ends before stop strings."""

import random

import pytest

from nemo_vfm.core.types.encoders import Tokenizer
from nemo_vfm.data.tokenizers.byte_tokenizer import ByteTokenizer
from nemo_vfm.data.tokenizers.folder_tokenizer import FolderTokenizer
from nemo_vfm.serve.answer_text import ChoiceWriter, Piece, StopStrings, TokenNames, TokenText
from nemo_vfm.serve.continuous.text_request import TokenResult
from tests.support.tiny_tokenizers import LINES, byte_level, metaspace


@pytest.fixture(scope="module", params=["bytes", "byte level", "metaspace"])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    if request.param == "bytes":
        return ByteTokenizer()
    make = byte_level if request.param == "byte level" else metaspace
    return FolderTokenizer(folder=make(tmp_path_factory.mktemp("tokenizer")))


def grown(tokenizer: Tokenizer, tokens: list[int], before: list[int]) -> list[str]:
    text = TokenText(tokenizer.decode, before)
    return [*(text.add(token) for token in tokens), text.rest()]


@pytest.mark.parametrize("line", LINES)
def test_pieces_are_the_whole_text(tokenizer: Tokenizer, line: str) -> None:
    (tokens,) = tokenizer.encode([line])
    assert "".join(grown(tokenizer, tokens, [])) == tokenizer.decode(tokens)


def test_a_text_goes_on_after_its_prompt_as_one(tokenizer: Tokenizer) -> None:
    (tokens,) = tokenizer.encode(["the cat sat on the mat"])
    for cut in range(1, len(tokens)):
        pieces = grown(tokenizer, tokens[cut:], tokens[:cut])
        assert tokenizer.decode(tokens[:cut]) + "".join(pieces) == tokenizer.decode(tokens)


def test_a_choice_begins_as_its_prompt_goes_on(tokenizer: Tokenizer) -> None:
    (tokens,) = tokenizer.encode(["the cat the cat"])
    for cut in range(1, len(tokens)):
        found: list[Piece] = []
        writer = ChoiceWriter(tokenizer.decode, tokens[:cut], [], found.append, in_pieces=False)
        for token in tokens[cut:]:
            assert writer.token(TokenResult(token))
        writer.end("length")
        assert tokenizer.decode(tokens[:cut]) + found[0].text == tokenizer.decode(tokens)


def test_bytes_that_are_no_text_come_out_as_they_do_at_once() -> None:
    draw, tokenizer = random.Random(0), ByteTokenizer()
    for _ in range(300):
        tokens = [draw.choice((65, 0xC3, 0xA9, 0xE6, 0x9D, 0xB1, 0xF0, 0xFF, 256)) for _ in range(draw.randint(1, 12))]
        assert "".join(grown(tokenizer, tokens, [])) == tokenizer.decode(tokens)
    assert len("".join(grown(tokenizer, [0xFF] * 200, [])[:-1])) >= 200 - 64, "no more than a window waits for the end"


def test_a_character_of_several_tokens_comes_whole() -> None:
    assert grown(ByteTokenizer(), list("é東".encode()), []) == ["", "é", "", "", "東", ""]


def test_every_token_of_a_vocabulary_has_a_name_of_its_own(tokenizer: Tokenizer) -> None:
    names = TokenNames(tokenizer)
    every = range(tokenizer.vocab_size() + 3)  # a model may have more rows than its tokenizer has tokens
    assert len({names.name(token) for token in every}) == len(every)
    for tokens in tokenizer.encode(LINES):
        for token in tokens:
            own = names.bytes_of(token)
            assert own is not None and "\ufffd" not in names.name(token)
            assert names.name(token).startswith(("bytes:", "token_id:")) or names.name(token).encode() == own


def test_stop_strings_end_a_text_wherever_it_is_cut() -> None:
    text, stops = "one two END three", ["END", "ENOUGH", " thr"]
    draw = random.Random(0)
    for _ in range(100):
        cuts = sorted(draw.sample(range(1, len(text)), draw.randrange(6)))
        watch, found, stopped = StopStrings(draw.sample(stops, 3)), "", False
        for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
            piece, stopped = watch.add(text[start:end])
            found += piece
            if stopped:
                break
        assert (found, stopped) == ("one two ", True)
    watch = StopStrings(stops)
    assert watch.add("is this the EN") == ("is this the ", False) and watch.rest() == "EN"
    assert watch.add("X") == ("ENX", False)


def test_the_parts_of_a_choice_are_the_choice() -> None:
    def pieces(*, in_pieces: bool, stops: list[str]) -> list[Piece]:
        found: list[Piece] = []
        writer = ChoiceWriter(ByteTokenizer().decode, [], stops, found.append, in_pieces=in_pieces)
        going = all(writer.token(TokenResult(byte)) for byte in "héllo wörld".encode())
        writer.end("length" if going else "stop")
        return found

    for stops in ([], ["wö"], ["ö", "zz"], ["d!"]):
        (whole,) = pieces(in_pieces=False, stops=stops)
        parts = pieces(in_pieces=True, stops=stops)
        assert "".join(part.text for part in parts) == whole.text and len(parts) > 5
        assert [token for part in parts for token in part.tokens] == whole.tokens
        assert (parts[-1].ending, parts[-1].num_tokens) == (whole.ending, whole.num_tokens)
    assert pieces(in_pieces=False, stops=["wö"])[0].text == "héllo "
