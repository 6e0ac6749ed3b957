"""Tests near-duplicate texts against all pairs: none is false, few are missed, and the kept one is really kept."""

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_vfm.dedup.texts import near_texts
from nemo_vfm.dedup.texts.near_texts import TextPair, near_duplicates, similar_pairs
from nemo_vfm.dedup.texts.normalize_text import normalize
from nemo_vfm.dedup.texts.shingles import Shingles, jaccard
from tests.dedup.texts.made_texts import changed, sentences

FAMILIES = [
    changed(text, number, seed=7 * place + number)
    for place, text in enumerate(sentences(120, seed=0))
    for number in (0, 1, 2, 3)
]
SHORT = st.lists(st.text("abAB  ", max_size=9), max_size=12)
WORDS = Shingles("words", 2)


def true_pairs(texts: list[str], threshold: float, shingles: Shingles) -> set[tuple[int, int]]:
    sets = [shingles.of(normalize(text)) for text in texts]
    return {(a, b) for a, b in combinations(range(len(texts)), 2) if jaccard(sets[a], sets[b]) >= threshold}


@pytest.mark.parametrize(("threshold", "shingles"), [(0.8, Shingles()), (0.6, Shingles()), (0.8, WORDS), (0.7, WORDS)])
@pytest.mark.slow
def test_no_pair_is_false_and_few_are_missed(threshold: float, shingles: Shingles):
    true = true_pairs(FAMILIES, threshold, shingles)
    pairs = list(similar_pairs(FAMILIES, threshold=threshold, shingles=shingles))
    found = {(pair.a, pair.b) for pair in pairs}
    assert len(true) > 50 and len(found) == len(pairs)
    assert found <= true and len(found) >= 0.98 * len(true)
    sets = [shingles.of(text) for text in FAMILIES]
    assert all(pair.jaccard == jaccard(sets[pair.a], sets[pair.b]) for pair in pairs)


@pytest.mark.slow
def test_each_that_goes_is_like_one_that_stays_and_no_two_that_stay_are_alike():
    true, gone = true_pairs(FAMILIES, 0.8, Shingles()), near_duplicates(FAMILIES)
    assert len(gone) > 100 and not set(gone) & set(gone.values())
    assert all((stays, goes) in true for goes, stays in gone.items())
    left = [pair for pair in true if not set(pair) & set(gone)]
    assert len(left) <= 0.02 * len(true)


@settings(deadline=None)
@given(SHORT, st.sampled_from([Shingles("characters", 2), Shingles("words", 1)]))
@pytest.mark.slow
def test_of_any_texts_none_goes_for_one_that_is_not_like_it(texts: list[str], shingles: Shingles):
    true = true_pairs(texts, 0.7, shingles)
    gone = near_duplicates(texts, threshold=0.7, shingles=shingles)
    assert all((stays, goes) in true and stays not in gone for goes, stays in gone.items())
    assert {(p.a, p.b) for p in similar_pairs(texts, threshold=0.7, shingles=shingles)} <= true


def test_a_chain_of_likenesses_does_not_drop_its_far_end():
    texts = ["abcdefghij", "bcdefghijk", "cdefghijkl"]
    pairs = list(similar_pairs(texts, threshold=0.7, shingles=Shingles("characters", 1)))
    assert [(pair.a, pair.b) for pair in pairs] == [(0, 1), (1, 2)]
    assert near_duplicates(texts, threshold=0.7, shingles=Shingles("characters", 1)) == {1: 0}


def test_copies_are_linked_to_the_first_and_never_compared(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(near_texts, "jaccard", lambda a, b: pytest.fail("copies were compared"))
    texts = ["The same text", "another one", *["the  SAME text"] * 2000]
    assert near_duplicates(texts) == dict.fromkeys(range(2, 2002), 0)
    assert list(similar_pairs(texts[:4])) == [TextPair(0, 2, 1.0), TextPair(0, 3, 1.0)]


def test_a_copy_of_a_text_that_goes_refers_to_the_one_that_stays():
    first = FAMILIES[0]
    near = first + " x"
    assert near_duplicates([first, near, near.upper()]) == {1: 0, 2: 0}


def test_variants_of_one_text_are_compared_with_the_one_that_stays_alone(monkeypatch: pytest.MonkeyPatch):
    compared = []
    monkeypatch.setattr(near_texts, "jaccard", lambda a, b: compared.append(1) or jaccard(a, b))
    texts = [f"{FAMILIES[0]} {number}" for number in range(500)]
    assert near_duplicates(texts) == dict.fromkeys(range(1, 500), 0)
    assert len(compared) == 499


def test_the_same_seed_gives_the_same_and_the_order_of_texts_decides_who_stays():
    assert near_duplicates(FAMILIES, seed=5) == near_duplicates(FAMILIES, seed=5)
    one, other = FAMILIES[0], FAMILIES[0] + " x"
    assert near_duplicates([one, other]) == near_duplicates([other, one]) == {1: 0}


@pytest.mark.parametrize("texts", [[], [""], ["", " "], ["a", ""]])
def test_few_and_empty_texts_are_no_trouble(texts: list[str]):
    assert near_duplicates(texts) == ({1: 0} if texts == ["", " "] else {})


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"threshold": 0}, "threshold must be above 0 and at most 1, got 0"),
        ({"threshold": 1.5}, "got 1.5"),
        ({"threshold": float("nan")}, "got nan"),
        ({"num_hashes": 0}, "num_hashes must be at least 1"),
        ({"num_hashes": 5000}, "num_hashes must be at most 4,096"),
        ({"num_hashes": 2, "threshold": 0.5}, "2 hashes find only 75%"),
    ],
)
def test_wrong_numbers_are_refused(wrong: dict, words: str):
    with pytest.raises(ValueError, match=words):
        near_duplicates(["a"], **wrong)
    with pytest.raises(ValueError, match=words):
        list(similar_pairs(["a"], **wrong))
