"""Tests that texts that come one at a time are compared as texts that are all there."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_vfm.dedup.texts import near_texts
from nemo_vfm.dedup.texts.near_texts import NearTextIndex, _Chains, near_duplicates, similar_pairs
from nemo_vfm.dedup.texts.shingles import Shingles
from tests.dedup.texts.made_texts import changed, sentences

FAMILIES = [
    changed(text, number, seed=7 * place + number)
    for place, text in enumerate(sentences(66, seed=0))
    for number in (0, 1, 2, 3)
]
SHORT = st.lists(st.text("abAB  ", max_size=9), max_size=12)


def dropped(texts: list[str], **settings: object) -> dict[int, int]:
    """As `near_duplicates`, text by text."""
    index, places, gone = NearTextIndex(**settings), [], {}
    for place, text in enumerate(texts):
        if match := next(index.matches(text), None):
            gone[place] = places[match[0]]
        else:
            assert index.enter(text) == len(places)
            places.append(place)
    return gone


@pytest.mark.parametrize(("threshold", "shingles"), [(0.8, Shingles()), (0.6, Shingles("words", 2))])
def test_all_pairs_are_those_of_the_search_in_one_batch(threshold: float, shingles: Shingles):
    """Those that are alike come far apart, so that what grows meanwhile has to keep the early ones."""
    texts = [text for first in range(4) for text in FAMILIES[first::4]]
    index, found = NearTextIndex(threshold=threshold, shingles=shingles), set()
    for place, text in enumerate(texts):
        found |= {(other, place, similarity) for other, similarity in index.matches(text)}
        index.enter(text)
    pairs = similar_pairs(texts, threshold=threshold, shingles=shingles)
    assert len(FAMILIES) > near_texts._FIRST_ROOM and len(found) > 50
    assert found == {(pair.a, pair.b, pair.jaccard) for pair in pairs}


def test_the_same_texts_go_for_the_same_and_copies_go_too():
    assert dropped(FAMILIES) == near_duplicates(FAMILIES)
    texts = [FAMILIES[place] for place in (0, 4, 1, 0, 2, 4, 8, 1)]
    assert dropped(texts).keys() == near_duplicates(texts).keys() >= {3, 5, 7}


@settings(deadline=None, max_examples=50)
@given(SHORT)
def test_of_any_texts_the_same_ones_go(texts: list[str]):
    few = {"threshold": 0.7, "num_hashes": 32, "shingles": Shingles("characters", 2)}
    assert dropped(texts, **few).keys() == near_duplicates(texts, **few).keys()


def test_chains_find_equal_keys_of_the_same_band_alone_however_they_collide():
    chains, numbers = _Chains(3), np.random.default_rng(0)
    keys_NB = numbers.integers(0, 40, size=(3 * near_texts._FIRST_ROOM, 3), dtype=np.uint64) << np.uint64(32)
    for item, keys_B in enumerate(keys_NB[:600]):
        if item in (0, 1, 255, 256, 511, 512, 599):
            assert chains.others(keys_B).tolist() == np.flatnonzero((keys_NB[:item] == keys_B).any(axis=1)).tolist()
        chains.enter(keys_B)


def test_its_size_grows_by_what_is_said_of_a_text():
    index = NearTextIndex()
    texts = sentences(257, seed=1, num_words=8)
    for text in texts[:256]:
        index.enter(text)
    full = index.size()
    assert 128 + 21 * 16 < (full - sum(map(len, texts))) / 256 < 700
    index.enter(texts[256])
    assert len(index) == 257 and 1.6 * full < index.size() < 2 * full


def test_wrong_numbers_are_refused():
    with pytest.raises(ValueError, match="threshold must be above 0"):
        NearTextIndex(threshold=0)
    with pytest.raises(ValueError, match="find only"):
        NearTextIndex(threshold=0.01, num_hashes=1)
