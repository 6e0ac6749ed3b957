"""Tests that hashed n-grams are the same everywhere, near for near words, and valid for every text."""

import os
import subprocess
import sys

import pytest
import torch

from nemo_vfm.core.types.encoders import TextEncoder
from nemo_vfm.models.text_encoder import HashedNgrams


def test_words_become_unit_vectors_with_a_mask_and_zeros_after_the_end():
    text_BLD, mask_BL = HashedNgrams(dim=64, max_tokens=6).encode(["a red square, moving left", "blue"])
    assert text_BLD.shape == (2, 6, 64) and mask_BL.sum(1).tolist() == [5, 1]
    torch.testing.assert_close(text_BLD.norm(dim=2), mask_BL.float())


@pytest.mark.parametrize("text", ["", "   ", "?!", "\n"])
def test_a_text_without_words_is_one_null_token_unlike_any_word(text):
    encoder = HashedNgrams(dim=256)
    text_BLD, mask_BL = encoder.encode([text, "", "empty"])
    assert mask_BL[:2].sum(1).tolist() == [1, 1]
    torch.testing.assert_close(text_BLD[0], text_BLD[1])
    assert text_BLD[0, 0] @ text_BLD[2, 0] < 0.5


def test_texts_longer_than_the_limit_are_cut():
    text_BLD, mask_BL = HashedNgrams(dim=8, max_tokens=3).encode(["one two three four five"])
    assert text_BLD.shape == (1, 3, 8) and mask_BL.all()


@pytest.mark.slow
def test_vectors_are_the_same_in_another_process_with_another_hash_seed():
    code = (
        "from nemo_vfm.models.text_encoder import HashedNgrams;"
        "print(HashedNgrams(dim=64, max_tokens=4).encode(['Größe über 日本'])[0].double().sum(0).tolist())"
    )
    environment = os.environ | {"PYTHONHASHSEED": "12345"}
    there = subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True)
    here = HashedNgrams(dim=64, max_tokens=4).encode(["Größe über 日本"])[0].double().sum(0).tolist()
    assert there.stdout == f"{here}\n"


def test_the_features_never_change():
    """Shards hold these vectors: a change here needs another fingerprint."""
    text_BLD, _ = HashedNgrams(dim=8, max_tokens=2, ngram_weight=0.0, context_weight=0.0).encode(["red ball"])
    assert (text_BLD[0] > 0).long().tolist() == [[1, 1, 0, 1, 1, 0, 0, 0], [1, 0, 0, 0, 1, 0, 1, 1]]


def test_words_of_one_stem_are_nearer_than_others_and_case_does_not_count():
    encoder = HashedNgrams(dim=512, context_weight=0.0)
    (squares, square, shout, circle), _ = encoder.encode(["squares", "square", "SQUARE", "circle"])
    torch.testing.assert_close(square, shout)
    assert squares[0] @ square[0] > circle[0] @ square[0] + 0.1


def test_context_tells_word_orders_apart_and_can_be_switched_off():
    def mean(encoder, text):
        return encoder.encode([text])[0].sum(1)

    with_context, without = HashedNgrams(dim=64), HashedNgrams(dim=64, context_weight=0.0)
    one, other = "red over blue", "blue over red"
    assert not torch.allclose(mean(with_context, one), mean(with_context, other), atol=1e-3)
    torch.testing.assert_close(mean(without, one), mean(without, other))


@pytest.mark.parametrize("changes", [{"dim": 12}, {"dim": 0}, {"max_tokens": 0}, {"ngram_weight": -1.0}])
def test_settings_that_cannot_be_are_refused(changes):
    with pytest.raises(ValueError, match=r"must|cannot"):
        HashedNgrams(**changes)


def test_the_fingerprint_names_every_setting():
    assert isinstance(HashedNgrams(), TextEncoder)
    variants = ({}, {"dim": 64}, {"max_tokens": 8}, {"ngram": 4}, {"ngram_weight": 0.1}, {"context_weight": 0.0})
    assert len({HashedNgrams(**changes).fingerprint() for changes in variants}) == len(variants)
