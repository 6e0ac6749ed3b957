"""Tests that text encoded as bytes decodes to itself."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from nemo_vfm.core.types.encoders import Tokenizer
from nemo_vfm.data.tokenizers.byte_tokenizer import ByteTokenizer

OURS = ByteTokenizer()


@settings(max_examples=50)
@given(some.lists(some.text()))
def test_any_text_comes_back(texts: list[str]) -> None:
    tokens = OURS.encode(texts)
    assert [OURS.decode([*one, OURS.end()]) for one in tokens] == texts
    assert all(0 <= token < 256 for one in tokens for token in one)


def test_the_end_is_a_token_of_its_own() -> None:
    assert isinstance(OURS, Tokenizer) and OURS.end() == 256 and OURS.vocab_size() == 257


def test_halves_of_letters_and_of_pairs_are_shown_and_stop_nothing() -> None:
    assert OURS.decode("é".encode()[:1]) == "\ufffd" and OURS.encode(["a\ud800"]) == [[97, 63]]


def test_rows_that_a_model_has_besides_say_nothing() -> None:
    assert OURS.decode([97, 257, 98, 5000]) == "ab"
    with pytest.raises(ValueError, match="-1 is not a token"):
        OURS.decode([97, -1])
