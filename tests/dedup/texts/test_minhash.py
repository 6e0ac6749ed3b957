"""Tests MinHash: shingles, what a signature estimates, and how bands are chosen."""

import numpy as np
import pytest

from nemo_vfm.dedup.texts.minhash import MIN_RECALL, Bands, bands_for, buckets, signatures
from nemo_vfm.dedup.texts.shingles import Shingles, jaccard, word_hash
from tests.dedup.texts.made_texts import changed, sentences


@pytest.mark.parametrize(
    "shingles", [Shingles(), Shingles("characters", 3), Shingles("words", 2), Shingles("words", 1)]
)
def test_equal_shingles_have_equal_hashes_and_others_have_others(shingles: Shingles):
    texts = ["", "a", "ab cd", "ab cd ab cd ab cd", "cd ab", *sentences(20, seed=3), "\U0001f600 x\ud800"]
    hashes, starts = shingles.hashes(texts)
    of_texts = [set(part.tolist()) for part in np.split(hashes, starts[1:])]
    sets = [shingles.of(text) for text in texts]
    assert [len(part) for part in of_texts] == [len(part) for part in sets]
    assert len(set().union(*of_texts)) == len(set().union(*sets))
    for a in range(len(texts)):
        assert [len(of_texts[a] & other) for other in of_texts] == [len(sets[a] & other) for other in sets]


def test_a_short_text_is_one_shingle():
    assert Shingles("characters", 5).of("abc") == {"abc"} and Shingles("characters", 5).of("") == {""}
    assert Shingles("words", 3).of("one two") == {"one two"}
    assert Shingles("words", 2).of("one, two three") == {"one two", "two three"}
    assert Shingles("characters", 2).of("abcab") == {"ab", "bc", "ca"}


@pytest.mark.parametrize("wrong", [{"size": 0}, {"size": 1001}, {"unit": "letters"}])
def test_wrong_shingles_are_refused(wrong: dict):
    with pytest.raises(ValueError, match=r"size must be|unit is 'letters'"):
        Shingles(**wrong)


def test_hashes_of_words_are_those_of_every_process():
    assert word_hash("word") == 0x958EC7D727CFA44A


def test_equal_numbers_of_two_signatures_estimate_their_jaccard_similarity():
    texts = sentences(400, seed=0)
    variants = [changed(text, 1 + place % 6, seed=place) for place, text in enumerate(texts)]
    one, other = (signatures(each, Shingles(), 128, seed=1) for each in (texts, variants))
    true = np.array([jaccard(Shingles().of(a), Shingles().of(b)) for a, b in zip(texts, variants, strict=True)])
    error = (one == other).mean(axis=1) - true
    spread = (true * (1 - true) / 128) ** 0.5
    assert abs((error / spread).mean()) < 4 / len(texts) ** 0.5  # no bias
    assert 0.85 < (error / spread).std() < 1.15  # as 128 independent draws


def test_a_signature_depends_on_its_text_and_the_seed_alone():
    texts = [*sentences(5, seed=0), "x" * 300_000, *sentences(3, seed=1)]  # a chunk holds 131,072 characters
    together = signatures(texts, Shingles(), 16, seed=0)
    alone = np.concatenate([signatures([text], Shingles(), 16, seed=0) for text in texts])
    assert np.array_equal(together, alone)
    assert (signatures(texts[:5], Shingles(), 16, seed=1) != together[:5]).all()


@pytest.mark.parametrize("threshold", [0.3, 0.5, 0.7, 0.8, 0.9, 0.97, 1.0])
def test_bands_are_the_longest_that_find_what_is_at_the_threshold(threshold: float):
    bands = bands_for(threshold, 128)
    assert bands.count * bands.rows <= 128 and bands.recall(threshold) >= MIN_RECALL
    longer = [Bands(128 // rows, rows) for rows in range(bands.rows + 1, 129)]
    assert all(other.recall(threshold) < MIN_RECALL for other in longer)


def test_too_few_hashes_for_a_threshold_are_refused():
    with pytest.raises(ValueError, match=r"8 hashes find only 57% .* threshold of 0.1; use more hashes"):
        bands_for(0.1, 8)


def test_a_bucket_is_shared_where_a_whole_band_is_equal():
    rows_NP = np.array([[1, 2, 3, 4, 9], [1, 2, 5, 6, 9], [7, 8, 3, 4, 9], [1, 2, 4, 3, 9]], dtype=np.uint32)
    found = buckets(rows_NP, Bands(2, 2))
    assert found[:, 0].tolist() == [found[0, 0], found[0, 0], -1, found[0, 0]]
    assert found[:, 1].tolist() == [found[0, 1], -1, found[0, 1], -1]
    assert sorted({*found.ravel().tolist()}) == [-1, 0, 1]
