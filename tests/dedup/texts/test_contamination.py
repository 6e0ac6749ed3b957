"""Tests decontamination: every shared n-gram is found with its reference, and nothing else is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_vfm.dedup.texts import contamination
from nemo_vfm.dedup.texts.contamination import Contamination, Overlap
from tests.dedup.texts.made_texts import sentences

FIRST, SECOND, OTHER = sentences(3, seed=0)
AROUND = sentences(1, seed=9)[0]


def part(text: str, first: int, count: int) -> str:
    return " ".join(text.split()[first : first + count])


def test_thirteen_words_in_a_row_are_found_and_twelve_are_not():
    index = Contamination([FIRST, SECOND])
    shared = part(SECOND, 9, 13)
    assert index.find(f"{AROUND} {shared} {OTHER}") == Overlap(1, shared)
    assert index.find(f"{AROUND} {part(SECOND, 9, 12)} {OTHER}") is None
    assert index.find(OTHER) is None and index.find("") is None


def test_case_punctuation_and_spaces_hide_nothing():
    shared = ",\n ".join(word.upper() for word in part(FIRST, 0, 13).split())
    assert Contamination([FIRST]).find(f"{AROUND}: «{shared}»!") == Overlap(0, part(FIRST, 0, 13))


def test_the_number_of_words_is_an_argument():
    text = f"{AROUND} {part(FIRST, 3, 5)} {OTHER}"
    assert Contamination([FIRST], n=5, shortest=5).find(text) == Overlap(0, part(FIRST, 3, 5))
    assert Contamination([FIRST], n=6, shortest=5).find(text) is None


def test_of_several_references_with_one_ngram_the_first_is_named():
    shared = part(FIRST, 0, 13)
    assert Contamination([OTHER, f"{shared} x", f"y {shared}"]).find(shared) == Overlap(1, shared)


def test_a_reference_of_fewer_words_is_found_whole():
    index = Contamination([FIRST, part(SECOND, 0, 9)])
    assert index.find(f"{AROUND} {part(SECOND, 0, 9)} {OTHER}") == Overlap(1, part(SECOND, 0, 9))
    assert index.find(f"{AROUND} {part(SECOND, 0, 8)} {OTHER}") is None


def test_references_of_every_length_are_looked_for_in_one_text_or_in_several():
    short, middle = part(SECOND, 0, 9), part(OTHER, 4, 11)
    index = Contamination([FIRST, short, middle, "Paris."])
    for reference, shared in enumerate((part(FIRST, 2, 13), short, middle)):
        assert index.find(f"{AROUND} {shared} {AROUND}") == Overlap(reference, shared)
    assert index.find(f"{short} {AROUND} {part(FIRST, 2, 13)}") == Overlap(0, part(FIRST, 2, 13)), "the longest first"


def test_a_very_short_reference_is_found_only_where_it_is_the_whole_text():
    index = Contamination([FIRST, "Paris."])
    assert index.find(" PARIS") == Overlap(1, "paris")
    assert index.find("The capital is Paris.") is None


def test_a_stream_of_texts_gives_the_positions_of_those_that_share_something():
    texts = [OTHER, part(FIRST, 0, 20), AROUND, SECOND]
    found = Contamination(iter([FIRST, SECOND])).find_all(iter(texts))
    assert {position: overlap.reference for position, overlap in found.items()} == {1: 0, 3: 1}


def test_equal_hashes_of_other_words_are_no_overlap(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(contamination, "word_hash", lambda word: 1)
    index = Contamination([FIRST, SECOND])
    assert index.find(OTHER) is None and index.find(SECOND) == Overlap(1, part(SECOND, 0, 13))


@given(st.lists(st.text("ab ", max_size=30), min_size=1, max_size=4), st.text("ab ", max_size=30))
def test_it_finds_what_a_plain_search_finds(references: list[str], text: str):
    references.append("c c c c c")
    index, words = Contamination(references, n=3, shortest=2), text.split()
    grams = {(*words[first : first + size],) for size in (2, 3) for first in range(len(words) - size + 1)}
    expected = [
        place
        for place, reference in enumerate(map(str.split, references))
        if any((*reference[first : first + 3],) in grams for first in range(len(reference) - 2))
        or (len(reference) == 2 and (*reference,) in grams)
        or (len(reference) == 1 and reference == words)
    ]
    found = index.find(text)
    assert (found is not None) == bool(expected)
    assert found is None or (found.reference in expected and f" {found.ngram} " in f" {' '.join(words)} ")


def test_references_without_words_match_nothing_and_are_counted(caplog: pytest.LogCaptureFixture):
    assert Contamination(["...", FIRST, ""]).find("!") is None
    assert "2 of 3 references have no words" in caplog.text
    with pytest.raises(ValueError, match="none of the 1 references has a word"):
        Contamination(["?"])


@pytest.mark.parametrize("wrong", [{"n": 0}, {"n": 5}, {"n": 13, "shortest": 14}, {"shortest": 0}])
def test_wrong_numbers_are_refused(wrong: dict):
    with pytest.raises(ValueError, match="must be at"):
        Contamination([FIRST], **wrong)
