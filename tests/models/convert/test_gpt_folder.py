# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Folders of transformers' language models are read, and written, as the same function."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.models.blocks.text_rope import LongContext, TextRope
from nemo_vfm.models.convert.gpt_folder import load_gpt, save_gpt
from nemo_vfm.models.gpt import GPT

SIZES: dict[str, Any] = {
    "vocab_size": 96, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 6,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "head_dim": 8,
}  # fmt: skip
LONG = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16}  # fmt: skip
FAMILIES: dict[str, tuple[Any, dict[str, Any]]] = {
    "llama": (transformers.LlamaConfig, {}),
    "llama 3.1, tied": (transformers.LlamaConfig, {"rope_parameters": LONG, "tie_word_embeddings": True}),
    "mistral": (transformers.MistralConfig, {"sliding_window": None}),
    "qwen 2": (transformers.Qwen2Config, {"use_sliding_window": False, "head_dim": 8}),
    "qwen 3": (transformers.Qwen3Config, {"use_sliding_window": False}),
    "nemotron": (transformers.NemotronConfig, {"partial_rotary_factor": 0.5, "hidden_act": "relu2"}),
}


def written(folder: Path, family: str, **more: Any) -> Any:
    """A random model of transformers, saved to the folder: norms and biases are no ones and zeros."""
    kind, own = FAMILIES[family]
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(kind(**(SIZES | own | more))).eval()
    for name, parameter in model.named_parameters():
        if "norm" in name or name.endswith("bias"):
            torch.nn.init.normal_(parameter, 0.5, 0.2)
    model.save_pretrained(folder)
    return model


def scores(model: GPT, words: torch.Tensor) -> torch.Tensor:
    cache = model.cache(torch.zeros(len(words), dtype=torch.long), words.shape[1], torch.float32)
    with torch.no_grad():
        return model.eval().scores(words, cache, last=False)


def words() -> torch.Tensor:
    return torch.randint(0, 96, (2, 40), generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_are_the_same_both_ways(family: str, tmp_path: Path) -> None:
    theirs = written(tmp_path / "theirs", family)
    ours = load_gpt(tmp_path / "theirs")
    with torch.no_grad():
        expected = theirs(words()).logits
    torch.testing.assert_close(scores(ours, words()), expected, atol=1e-4, rtol=1e-4)
    save_gpt(ours, tmp_path / "ours", most_tokens=256)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours").eval()
    with torch.no_grad():
        torch.testing.assert_close(again(words()).logits, expected, atol=1e-4, rtol=1e-4)
    assert torch.equal(scores(load_gpt(tmp_path / "ours"), words()), scores(ours, words()))


def test_weights_in_several_files_are_read(tmp_path: Path) -> None:
    theirs = written(tmp_path / "one", "llama")
    theirs.save_pretrained(tmp_path / "many", max_shard_size="20KB")
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 2
    assert torch.equal(scores(load_gpt(tmp_path / "many"), words()), scores(load_gpt(tmp_path / "one"), words()))


@pytest.mark.parametrize(
    ("family", "more", "said"),
    [
        ("llama", {"attention_bias": True}, "says attention_bias: True"),
        ("llama", {"hidden_act": "gelu"}, "says hidden_act: gelu"),
        ("mistral", {"sliding_window": 16}, "says sliding_window: 16"),
        ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}}, "of type linear"),
    ],
)
def test_what_would_be_another_function_is_refused_by_name(
    family: str, more: dict[str, Any], said: str, tmp_path: Path
) -> None:
    written(tmp_path / "theirs", family, **more)
    with pytest.raises(DataError, match=said):
        load_gpt(tmp_path / "theirs")


def test_damage_and_strangers_are_sentences(tmp_path: Path) -> None:
    written(tmp_path, "llama")
    weights = load_file(tmp_path / "model.safetensors")
    save_file(weights | {"adapter.weight": torch.zeros(2)}, tmp_path / "model.safetensors")
    with pytest.raises(DataError, match=r"does not imply: adapter\.weight"):
        load_gpt(tmp_path)
    del weights["model.norm.weight"]
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(DataError, match=r"no model\.norm\.weight"):
        load_gpt(tmp_path)
    content = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(content[: len(content) // 2])
    with pytest.raises(DataError, match=r"model\.safetensors is damaged"):
        load_gpt(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"architectures": ["BloomForCausalLM"]}))
    with pytest.raises(DataError, match="says BloomForCausalLM"):
        load_gpt(tmp_path)
    with pytest.raises(UserError, match="is not empty"):
        save_gpt(GPT(vocab=8, width=8, depth=1, heads=2, mlp_hidden=8), tmp_path, 16)


def test_what_transformers_has_no_name_for_is_not_written(tmp_path: Path) -> None:
    model = GPT(vocab=8, width=8, depth=1, heads=2, mlp_hidden=8, norm="layernorm1p",
                rope=TextRope(long_context=LongContext()))  # fmt: skip
    with pytest.raises(DataError, match="no architecture of transformers has norm layernorm1p, activation swiglu"):
        save_gpt(model, tmp_path / "out", 16)
    assert not (tmp_path / "out").exists()
