"""Compares the text encoder with transformers called directly, for every family of models."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

pytest.importorskip("transformers", reason="needs the extra transformers")

import transformers as hf

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.precision import Precision
from nemo_vfm.core.types.encoders import TextEncoder
from nemo_vfm.models import transformers_text
from nemo_vfm.models.transformers_text import TransformersTextEncoder
from tests.support.text_folders import MODELS, text_folder

TEXTS = ["a red square moving left", "", "caf\u00e9", "x" * 100]
POSITIONS = 48  # of the families with a table of them


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    return {family: text_folder(root / family, family) for family in MODELS}


@pytest.fixture
def t5(folders):
    return folders["t5"]


def encoder(folder, **changes):
    return TransformersTextEncoder(**({"folder": folder, "max_tokens": 32, "precision": "fp32"} | changes))


def reference(family, folder):
    kinds = {"t5": hf.T5EncoderModel, "umt5": hf.UMT5EncoderModel}
    return kinds.get(family, hf.AutoModel).from_pretrained(folder).eval()


def by_transformers(family, folder, text):
    """What transformers gives for one text without padding, or padded in full where the model wants it."""
    words, model = hf.AutoTokenizer.from_pretrained(folder), reference(family, folder)
    if family == "siglip":
        inputs = {"input_ids": words(text, padding="max_length", max_length=POSITIONS, return_tensors="pt").input_ids}
    else:
        tokens = words(text, truncation=True, max_length=32, return_tensors="pt")
        inputs = {"input_ids": tokens.input_ids, "attention_mask": tokens.attention_mask}
    part = {"clip": "text_model", "siglip": "text_model", "bart": "encoder"}.get(family)
    with torch.inference_mode():
        return (getattr(model, part) if part else model)(**inputs, output_hidden_states=True)


@pytest.mark.parametrize("family", MODELS)
def test_vectors_are_those_of_transformers_for_every_family(family, folders):
    folder = folders[family]
    text_BLD, mask_BL = encoder(folder).encode(TEXTS)
    assert text_BLD.shape == (4, 32, 16) == (4, *encoder(folder).text_shape()) and text_BLD.dtype == torch.float32
    assert torch.isfinite(text_BLD).all() and (text_BLD[~mask_BL] == 0).all() and mask_BL[0].sum() in (24, 25)
    expected = by_transformers(family, folder, TEXTS[0])
    length = int(mask_BL[0].sum())
    torch.testing.assert_close(text_BLD[0, :length], expected.last_hidden_state[0, :length], atol=1e-5, rtol=1e-5)
    inner, _ = encoder(folder, layers=[0, 1]).encode(TEXTS)
    joined = torch.cat(expected.hidden_states[:2], 2)[0, :length]
    torch.testing.assert_close(inner[0, :length], joined, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", MODELS)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_weights_that_are_held_are_those_that_are_loaded(precision, family, folders):
    transformers_text.load.cache_clear()
    chosen = encoder(folders[family], precision=precision)
    held = chosen.held_weights().num_bytes
    assert transformers_text.load.cache_info().misses == 0, "no weight was read"
    tower = transformers_text.load(chosen.folder, chosen.tokenizer, Precision(precision))
    assert held == sum(parameter.nbytes for parameter in tower._model.parameters())


@pytest.mark.parametrize("family", MODELS)
def test_neither_company_nor_room_changes_a_text(family, folders):
    """Texts of other lengths beside it, and another number of rows, are other paddings."""
    together, masks = encoder(folders[family]).encode(TEXTS)
    alone = torch.cat([encoder(folders[family]).encode([text])[0] for text in TEXTS])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-5)
    longer, _ = encoder(folders[family], max_tokens=40).encode(TEXTS[:3])
    torch.testing.assert_close(longer[:, :32], together[:3], atol=1e-5, rtol=1e-5)
    assert not masks[1, 2:].any()


@pytest.mark.parametrize("family", ["t5", "clip", "modernbert", "llama", "qwen_vl"])
def test_the_final_norm_is_applied_where_it_is_asked_for(family, folders):
    plain, mask = encoder(folders[family], layers=[1, 2]).encode(TEXTS[:1])
    normed, _ = encoder(folders[family], layers=[1, 2], final_norm="all").encode(TEXTS[:1])
    raw, _ = encoder(folders[family], layers=[1, 2], final_norm="none").encode(TEXTS[:1])
    one, two = slice(0, 16), slice(16, 32)
    assert torch.equal(plain[..., one], raw[..., one]) and torch.equal(plain[..., two], normed[..., two])
    model = reference(family, folders[family])
    norm = {"t5": "encoder.final_layer_norm", "clip": "text_model.final_layer_norm", "modernbert": "final_norm",
            "llama": "norm", "qwen_vl": "language_model.norm"}[family]  # fmt: skip
    with torch.inference_mode():
        again = model.get_submodule(norm)(torch.cat([raw[..., one], raw[..., two]]))
    torch.testing.assert_close(normed[mask][:, one], again[0][mask[0]], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(normed[mask][:, two], again[1][mask[0]], atol=1e-5, rtol=1e-5)


def test_a_model_without_a_known_final_norm_refuses_the_choice(folders):
    with pytest.raises(UserError, match=r"\(bert\) has no final norm .* set final_norm to last"):
        encoder(folders["bert"], final_norm="none").encode(["x"])


def test_cosmos_predict_joins_the_scaled_states_of_every_block_of_a_prompt_in_a_template(folders):
    template = "system: say\nuser: {caption}\n"
    how = {"layers": "all", "normalize": True, "template": template, "drop_tokens": 12}
    text_BLD, mask_BL = encoder(folders["qwen_vl"], **how).encode(["a red square", "a {caption}"])
    words = hf.AutoTokenizer.from_pretrained(folders["qwen_vl"])
    model = reference("qwen_vl", folders["qwen_vl"])
    tokens = words("system: say\nuser: a red square\n", return_tensors="pt")
    with torch.inference_mode():
        states = model(**tokens, output_hidden_states=True).hidden_states[1:]
    joined = torch.cat([(s - s.mean(-1, keepdim=True)) / (s.std(-1, keepdim=True) + 1e-8) for s in states], -1)
    assert mask_BL.sum(1).tolist() == [19, 18] and text_BLD.shape == (
        2,
        *encoder(folders["qwen_vl"], **how).text_shape(),
    )
    torch.testing.assert_close(text_BLD[0, :19], joined[0, 12:], atol=1e-4, rtol=1e-4)


def test_padding_that_is_read_is_masked_for_nobody_and_counts_in_every_vector(t5):
    text_BLD, mask_BL = encoder(t5, reads_padding=True, max_tokens=32).encode(TEXTS[:1])
    words = hf.AutoTokenizer.from_pretrained(t5)(TEXTS[0], padding="max_length", max_length=32, return_tensors="pt")
    with torch.inference_mode():
        expected = reference("t5", t5)(input_ids=words.input_ids).last_hidden_state
    assert mask_BL.all() and mask_BL.shape == (1, 32)
    torch.testing.assert_close(text_BLD, expected, atol=1e-5, rtol=1e-5)
    assert (text_BLD - encoder(t5).encode(TEXTS[:1])[0])[0, :20].abs().max() > 1e-3


def test_pooling_gives_a_text_one_vector_of_its_own_tokens(folders):
    text_BLD, mask_BL = encoder(folders["clip"]).encode(TEXTS)
    for pooling in ("mean", "first", "last"):
        pooled = encoder(folders["clip"], pooling=pooling)
        one_B1D, seen_B1 = pooled.encode(TEXTS)
        assert pooled.text_shape() == (1, 16) and seen_B1.all()
        for row, length in enumerate(mask_BL.sum(1).tolist()):
            own = text_BLD[row, :length]
            expected = {"mean": own.mean(0), "first": own[0], "last": own[-1]}[pooling]
            torch.testing.assert_close(one_B1D[row, 0], expected, atol=1e-6, rtol=1e-5)
    nothing, seen = encoder(folders["llama"], pooling="last").encode([""])
    assert not nothing.any() and not seen.any()


def test_a_tokenizer_may_lie_beside_the_model_and_belongs_to_its_identity(t5, tmp_path):
    words, model = tmp_path / "tokenizer", shutil.copytree(t5, tmp_path / "text_encoder")
    words.mkdir()
    for file in sorted(model.glob("tokenizer*")):
        file.rename(words / file.name)
    apart = encoder(model, tokenizer=words)
    assert torch.equal(apart.encode(TEXTS)[0], encoder(t5).encode(TEXTS)[0])
    before = apart.fingerprint()
    (words / "tokenizer_config.json").write_text((words / "tokenizer_config.json").read_text() + " ")
    assert apart.fingerprint() != before


def test_threads_do_not_get_into_each_others_way(t5):
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda n: encoder(t5).encode([f"text {n % 4}"])[0], range(32)))
    assert all(torch.equal(found[n], found[n % 4]) for n in range(32))


def test_whatever_changes_an_embedding_changes_the_fingerprint_and_the_place_does_not(t5, tmp_path):
    other = shutil.copytree(t5, tmp_path / "other")
    assert encoder(other).fingerprint() == encoder(t5).fingerprint() and isinstance(encoder(t5), TextEncoder)
    changes = [{}, {"max_tokens": 8}, {"layers": [1]}, {"layers": "all"}, {"final_norm": "all"}, {"normalize": True},
               {"pooling": "mean"}, {"template": "x {caption}"}, {"drop_tokens": 1}, {"precision": "bf16"},
               {"reads_padding": True}]  # fmt: skip
    prints = {encoder(t5, **change).fingerprint() for change in changes}
    text_folder(other, "umt5")
    assert len({*prints, encoder(other).fingerprint()}) == len(changes) + 1


def changed(folder, tmp_path, name, **content):
    copy = shutil.copytree(folder, tmp_path / "changed")
    (copy / name).write_text(json.dumps(json.loads((copy / name).read_text()) | content))
    return copy


def test_a_folder_with_code_of_its_own_is_refused_wherever_it_says_so(t5, tmp_path):
    for name in ("config.json", "tokenizer_config.json"):
        copy = changed(
            t5, tmp_path / name, name, auto_map={"AutoModel": "mine.Model", "AutoTokenizer": ["mine.T", None]}
        )
        (copy / "mine.py").write_text("raise SystemExit('code of the folder was run')")
        with pytest.raises(UserError, match=f"{name} asks to run its own Python code"):
            encoder(copy).encode(["x"])


def test_quantised_weights_are_refused(t5, tmp_path):
    copy = changed(t5, tmp_path, "config.json", quantization_config={"quant_method": "bitsandbytes"})
    with pytest.raises(UserError, match="quantised"):
        encoder(copy).text_shape()


def test_weights_that_are_missing_are_not_made_up(t5, tmp_path):
    with pytest.raises(UserError, match=r"lacks .* weights"):
        encoder(changed(t5, tmp_path, "config.json", num_layers=3)).encode(["x"])


def test_pickled_weights_are_refused(t5, tmp_path):
    copy = shutil.copytree(t5, tmp_path / "pickled")
    (copy / "model.safetensors").rename(copy / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"only pytorch_model\.bin, which could run code"):
        encoder(copy).encode(["x"])


def test_a_model_that_transformers_does_not_know_is_said_in_a_sentence(t5, tmp_path):
    with pytest.raises(UserError, match="cannot be loaded as a text encoder"):
        encoder(changed(t5, tmp_path, "config.json", model_type="of_my_own")).encode(["x"])


def test_more_tokens_than_the_model_has_positions_are_refused_with_what_fits(folders):
    with pytest.raises(UserError, match=r"reads 48 tokens at most, and 52 are asked for .* lower max_tokens by 4"):
        encoder(folders["clip"], max_tokens=50, drop_tokens=2).encode(["x"])


def test_a_layer_that_does_not_exist_is_refused_before_weights_are_read(folders):
    with pytest.raises(UserError, match="no layer 3 in a llama of 2 blocks: expected -3 to 2"):
        encoder(folders["llama"], layers=[-1, 3]).text_shape()


@pytest.mark.parametrize(
    ("change", "said"),
    [({"max_tokens": 1}, "max_tokens is 1"), ({"drop_tokens": -1}, "drop_tokens is -1"),
     ({"layers": []}, "layers is empty"), ({"template": "x"}, "caption")],
)  # fmt: skip
def test_arguments_that_cannot_be_are_refused(t5, change, said):
    with pytest.raises(ValueError, match=said):
        encoder(t5, **change)
