"""Tests which language a text is said to be in."""

import pytest
from py3langid.langid import LanguageIdentifier

from nemo_vfm.synth.filters.kept_languages import LANGUAGES, language_of
from tests.synth.filters.language_texts import TEXTS


def test_sentences_of_every_language_are_told_apart_and_none_is_taken_for_another():
    guesses = [(language, language_of(text)) for language, texts in TEXTS.items() for text in texts]
    assert TEXTS.keys() <= set(LANGUAGES) and len(guesses) > 80
    assert not [pair for pair in guesses if pair[1] not in (pair[0], None)]
    assert sum(language == guess for language, guess in guesses) >= 0.97 * len(guesses)


def test_the_languages_are_those_of_the_model():
    known = LanguageIdentifier.from_model_file("data/model.npz.xz").labels
    assert {"no" if language == "nb" else language for language in LANGUAGES} == {one for one in known if len(one) == 2}


@pytest.mark.parametrize(
    "text", ["", "12 + 30 = 42", "Rigel", "```python\nfor the_word in and_or: is_not = the(this)\n```"]
)
def test_what_has_too_few_words_is_in_no_language(text: str):
    assert language_of(text) is None


def test_code_and_foreign_names_do_not_change_the_language_of_a_text():
    text = f"{TEXTS['ru'][0]}\n```\nif not the_word and is_in(this): return of_that\n```\n`the and of`"
    assert language_of(text) == "ru" and language_of(f"{TEXTS['ja'][0]} (Golden Gate)") == "ja"
    assert language_of("从服务器接收到 AuthenticationFinal, 但未完成身份验证") == "zh"
