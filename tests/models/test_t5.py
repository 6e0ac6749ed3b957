# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""A random T5 in a folder in; vectors that are zero after the text's end, by threads as by one, out."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

pytest.importorskip("transformers", reason="needs the extra transformers")

from transformers import AutoTokenizer, T5EncoderModel

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.types import TextEncoder
from nemo_vfm.models.t5 import T5TextEncoder
from tests.support.tiny_models import tiny_lm, tiny_t5

TEXTS = ["a red square moving left", "", "caf\u00e9", "x" * 100]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_t5(tmp_path_factory.mktemp("models") / "t5")


def encoder(folder, **changes):
    return T5TextEncoder(**({"folder": folder, "max_tokens": 32, "precision": "fp32"} | changes))


def test_vectors_are_those_of_transformers_and_zero_after_the_end(folder):
    text_BLD, mask_BL = encoder(folder).encode(TEXTS)
    assert text_BLD.shape == (4, 32, 16) == (4, *encoder(folder).text_shape()) and text_BLD.dtype == torch.float32
    assert mask_BL.sum(1).tolist() == [25, 1, 6, 32] and (text_BLD[~mask_BL] == 0).all()
    model, words = T5EncoderModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    with torch.inference_mode():
        alone = model(**words(TEXTS[0], return_tensors="pt")).last_hidden_state[0]
    torch.testing.assert_close(text_BLD[0, :25], alone, atol=1e-5, rtol=1e-5)


def test_a_text_gets_the_same_vectors_in_any_company(folder):
    together, _ = encoder(folder).encode(TEXTS)
    alone = torch.cat([encoder(folder).encode([text])[0] for text in TEXTS])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-5)


def test_threads_do_not_get_into_each_others_way(folder):
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda n: encoder(folder).encode([f"text {n % 4}"])[0], range(64)))
    assert all(torch.equal(found[n], found[n % 4]) for n in range(64))


def test_other_weights_or_lengths_are_another_fingerprint_and_another_place_is_not(folder, tmp_path):
    other = shutil.copytree(folder, tmp_path / "other")
    assert encoder(other).fingerprint() == encoder(folder).fingerprint()
    tiny_t5(other, seed=1)
    prints = {encoder(folder).fingerprint(), encoder(other).fingerprint(), encoder(folder, max_tokens=8).fingerprint()}
    assert len(prints) == 3 and isinstance(encoder(folder), TextEncoder)


def test_another_kind_of_model_is_said_in_a_sentence(tmp_path):
    with pytest.raises(UserError, match="kind 'llama', expected one of t5"):
        encoder(tiny_lm(tmp_path / "lm")).encode(["x"])


def test_weights_that_are_missing_are_not_made_up(folder, tmp_path):
    broken = shutil.copytree(folder, tmp_path / "broken")
    config = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps(config | {"num_layers": 3}))
    with pytest.raises(UserError, match=r"lacks .* weights"):
        encoder(broken).encode(["x"])


def test_a_limit_without_room_is_refused(folder):
    with pytest.raises(ValueError, match="max_tokens is 1"):
        encoder(folder, max_tokens=1)
