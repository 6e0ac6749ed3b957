"""Tests normalization: what nobody sees makes no difference, and a second time changes nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_vfm.dedup.texts.normalize_text import exact_duplicates, normalize, words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("  Two\t words\n", "two words"),
        ("ﬁne Ｆｕｌｌ ①", "fine full 1"),
        ("STRASSE Straße", "strasse strasse"),
        ("ca\u0301fe\u0301 soft\u00adly \ufeffzero\u200bwidth", "c\u00e1f\u00e9 softly zerowidth"),
        ("a\u00a0b\u3000c", "a b c"),
    ],
)
def test_case_forms_and_spaces_do_not_count(text: str, expected: str):
    assert normalize(text) == expected


@given(st.text(st.characters(codec=None), max_size=40))
def test_a_second_time_changes_nothing(text: str):
    assert normalize(normalize(text)) == normalize(text)


def test_a_long_run_of_combining_marks_is_cut():
    text = normalize("x" + "\u0316\u0301" * 200_000 + "y")
    assert text == normalize("x" + "\u0316\u0301" * 15 + "y") and len(text) == 32


def test_words_leave_out_punctuation_and_an_ideograph_is_one():
    assert words("Don't -- stop_it: 3.5 Größen, 東京タワー!") == [
        "don", "t", "stop", "it", "3", "5", "grössen", "東", "京", "タ", "ワ", "ー",
    ]  # fmt: skip


def test_a_copy_refers_to_the_first_of_its_kind_also_in_a_stream():
    texts = ["one", "two", " ONE ", "three", "ｏｎｅ", "Two", "", "  "]
    assert exact_duplicates(iter(texts)) == {2: 0, 4: 0, 5: 1, 7: 6}
    assert exact_duplicates(["\ud800", "\ud800", "\ud801"]) == {1: 0}
