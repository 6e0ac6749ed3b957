"""Tests that missing values of config.json get their family's defaults, and that bad ones are refused by their key."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from nemo_vfm.core.errors import DataError
from nemo_vfm.models.blocks.text.sliding_window import SlidingWindow
from nemo_vfm.models.blocks.text_rope import LongContext, TextRope
from nemo_vfm.models.convert.gpt_folder import load_gpt
from nemo_vfm.models.convert.language import gpt_families
from nemo_vfm.models.convert.language.gpt_config import arguments_of, config_of
from nemo_vfm.models.gpt import GPT
from tests.support.language_models import FAMILIES, LONG, scores, words, written

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 96, "hidden_size": 48,
    "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 6,
}  # fmt: skip
MISTRAL = LLAMA | {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "num_key_value_heads": 2}
QWEN = LLAMA | {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "num_key_value_heads": 2}
TYPES = ["sliding_attention", "full_attention", "sliding_attention"]
NEMOTRON = LLAMA | {"architectures": ["NemotronForCausalLM"], "model_type": "nemotron"}
SIZES = ["vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
         "num_key_value_heads", "head_dim", "max_position_embeddings"]  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_a_missing_epsilon_is_the_familys(family: str, tmp_path: Path) -> None:
    written(tmp_path, family)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({key: config[key] for key in config if not key.endswith("norm_eps")}))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        torch.testing.assert_close(scores(load_gpt(tmp_path), words()), theirs(words()).logits, atol=1e-4, rtol=1e-4)
    assert load_gpt(tmp_path).sizes.eps == (1e-5 if family.startswith(("nemotron", "phi")) else 1e-6)


@pytest.mark.parametrize(("kind", "null"), [
    *((kind, []) for kind in ("llama", "mistral", "qwen2", "qwen3", "nemotron")),
    *((kind, ["num_key_value_heads"]) for kind in ("llama", "qwen2", "qwen3", "nemotron")),
    *((kind, ["head_dim"]) for kind in ("llama", "mistral", "nemotron")),
], ids=str)  # fmt: skip
def test_what_config_json_leaves_out_is_what_transformers_takes(kind: str, null: list[str]) -> None:
    sizes = {key: LLAMA[key] for key in SIZES[:4]} | {"num_attention_heads": 16} | dict.fromkeys(null)
    theirs = transformers.AutoConfig.for_model(kind, **sizes)
    names = [name for name in gpt_families.FAMILIES if name.lower().startswith(f"{kind}for")]
    ours = arguments_of({"architectures": names, "sliding_window": None, **sizes})
    assert ours["groups"] == (theirs.num_key_value_heads or 16)
    assert ours["head_dim"] == (getattr(theirs, "head_dim", None) or 3)
    assert ours["tied"] == theirs.tie_word_embeddings
    assert ours["activation"] == {"silu": "swiglu", "relu2": "squared_relu"}[theirs.hidden_act]
    rope = theirs.rope_parameters
    assert ours["rope"].theta == rope["rope_theta"] and ours["rope"].share == rope.get("partial_rotary_factor", 1.0)


def test_a_window_is_read_as_each_family_reads_it() -> None:
    on = {"use_sliding_window": True}
    for config, window in (
        (MISTRAL, SlidingWindow(4096)),
        (MISTRAL | {"sliding_window": None}, None),
        (MISTRAL | {"use_sliding_window": False, "sliding_window": 16}, SlidingWindow(16)),
        (LLAMA | {"sliding_window": None}, None),
        (QWEN, None),
        (QWEN | {"use_sliding_window": False, "sliding_window": 16}, None),
        (QWEN | on, None),  # from layer 28 on
        (QWEN | on | {"max_window_layers": 3}, None),
        (QWEN | on | {"max_window_layers": 2}, SlidingWindow(4096, (2,))),
        (QWEN | on | {"max_window_layers": 0}, SlidingWindow(4096)),
        (QWEN | on | {"layer_types": TYPES, "sliding_window": 16}, SlidingWindow(16, (0, 2))),
        (QWEN | on | {"sliding_window": None, "max_window_layers": 0}, None),
    ):
        theirs = transformers.AutoConfig.for_model(**{key: config[key] for key in config if key != "architectures"})
        told = arguments_of(config)["window"]
        layers = [] if told is None else told.layers or (0, 1, 2)
        assert told == window and (not layers or theirs.sliding_window == told.tokens)
        if hasattr(theirs, "layer_types"):
            assert [one == "sliding_attention" for one in theirs.layer_types] == [n in layers for n in range(3)]
    for config, said in (
        (LLAMA | {"sliding_window": 16}, "says sliding_window: 16, and transformers has no such window there"),
        (MISTRAL | {"layer_types": TYPES}, "sliding_window is for 3 of 3 layers; leave out the wrong one"),
        (QWEN | {"use_sliding_window": "no", "sliding_window": 16}, 'use_sliding_window: "no"; it must be true or'),
        (QWEN | {"layer_types": ["sliding_attention"] * 3}, "sliding_window is for 0 of 3 layers"),
        (QWEN | on | {"layer_types": TYPES[:2]}, "full_attention or sliding_attention of each of 3 layers"),
    ):
        with pytest.raises(DataError, match=said):
            arguments_of(config)


PUBLISHED: dict[str, dict[str, Any]] = {
    "gemma 3 1b": {
        "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "attention_bias": False,
        "attention_dropout": 0.0, "attn_logit_softcapping": None, "bos_token_id": 2, "cache_implementation": "hybrid",
        "eos_token_id": [1, 106], "final_logit_softcapping": None, "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 1152, "initializer_range": 0.02,
        "intermediate_size": 6912, "max_position_embeddings": 32768, "num_attention_heads": 4, "num_hidden_layers": 7,
        "num_key_value_heads": 1, "pad_token_id": 0, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-6,
        "rope_local_base_freq": 10000, "rope_scaling": None, "rope_theta": 1000000, "sliding_window": 512,
        "sliding_window_pattern": 6, "torch_dtype": "bfloat16", "use_cache": True, "vocab_size": 262144,
    },
    "phi 4 mini": {
        "architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "attention_bias": False, "attention_dropout": 0.0,
        "auto_map": {"AutoConfig": "configuration_phi3.Phi3Config"}, "bos_token_id": 199999, "embd_pdrop": 0.0,
        "eos_token_id": 199999, "full_attn_mod": 1, "hidden_act": "silu", "hidden_size": 3072,
        "initializer_range": 0.02, "intermediate_size": 8192, "interpolate_factor": 1, "lm_head_bias": False,
        "max_position_embeddings": 131072, "mlp_bias": False, "num_attention_heads": 24, "num_hidden_layers": 2,
        "num_key_value_heads": 8, "original_max_position_embeddings": 4096, "pad_token_id": 199999,
        "partial_rotary_factor": 0.75, "resid_pdrop": 0.0, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "rope_scaling": {"long_factor": [1.5] * 48, "short_factor": [1.0] * 48, "type": "longrope"},
        "sliding_window": 262144, "tie_word_embeddings": True, "use_cache": True, "vocab_size": 200064,
    },
    "qwen 3 moe": {
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "attention_bias": False,
        "attention_dropout": 0.0, "bos_token_id": 151643, "decoder_sparse_step": 1, "eos_token_id": 151645,
        "head_dim": 128, "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02,
        "intermediate_size": 6144, "max_position_embeddings": 40960, "max_window_layers": 48, "mlp_only_layers": [],
        "moe_intermediate_size": 768, "norm_topk_prob": True, "num_attention_heads": 32, "num_experts": 128,
        "num_experts_per_tok": 8, "num_hidden_layers": 2, "num_key_value_heads": 4, "output_router_logits": False,
        "rms_norm_eps": 1e-6, "rope_scaling": None, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.001,
        "sliding_window": None, "tie_word_embeddings": False, "use_cache": True, "use_sliding_window": False,
        "vocab_size": 151936,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_configuration_is_read_whole(name: str) -> None:
    """All its keys, with fewer layers; as many parameters, and positions that transformers computes."""
    config = PUBLISHED[name]
    theirs = transformers.AutoConfig.for_model(**{key: config[key] for key in config if key != "architectures"})
    with torch.device("meta"):
        ours, other = GPT(**arguments_of(config)), transformers.AutoModelForCausalLM.from_config(theirs)
    assert sum(one.numel() for one in ours.parameters()) == sum(one.numel() for one in other.parameters())
    windows = [512] * 5 + [None, 512] if name == "gemma 3 1b" else [{"phi 4 mini": 262144}.get(name)] * 2
    assert ours.windows == windows
    rotary = type(other.model.rotary_emb)(theirs)
    places = torch.tensor([[0, 1, 700, 5000]])
    near = ("sliding_attention",) if name == "gemma 3 1b" else ()
    expected = rotary(torch.zeros(1), places, *near)
    far, own_near = ours.rotations(places, torch.tensor([[5001]]))
    torch.testing.assert_close((own_near or far)[0][:, :, 0], expected[0], atol=2e-3, rtol=0)  # at place 5,000, in fp32


def test_a_size_that_is_none_is_refused_by_its_key() -> None:
    for key in SIZES:
        for value in ("48", True, 48.0, -1, 0, 10**30, [48], {}, float("nan")):
            with pytest.raises(DataError, match=rf"^config\.json says {key}: .+; it must be a whole number from 1 to "):
                arguments_of(LLAMA | {key: value})


def test_a_size_that_is_missing_is_asked_for() -> None:
    for key in SIZES[:5]:
        with pytest.raises(DataError, match=f"has no {key}, without which the model is not known"):
            arguments_of({name: LLAMA[name] for name in LLAMA if name != key})


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"num_hidden_layers": 100_000}, "it must be a whole number from 1 to 1,000"),
        ({"num_hidden_layers": 900}, "says num_hidden_layers: 900, and its files hold 3"),
        ({"hidden_size": 1 << 20, "intermediate_size": 1 << 20}, "and config.json implies"),  # 12 TB a layer
        ({"num_attention_heads": 5}, "describes an impossible model: 5 heads cannot share 2 heads"),
        ({"head_dim": 7}, "describes an impossible model: rope.share 1.0 of a head of 7"),
        ({"vocab_size": 95}, r"model\.embed_tokens\.weight has shape \(96, 48\), and config\.json implies \(95, 48\)"),
    ],
)
def test_sizes_that_the_files_do_not_have_are_refused_before_memory_is_taken(
    more: dict[str, Any], said: str, tmp_path: Path
) -> None:
    written(tmp_path, "llama")
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | more))
    with pytest.raises(DataError, match=said) as error:
        load_gpt(tmp_path)
    assert str(error.value).startswith(tmp_path.name)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (LLAMA | {"partial_rotary_factor": 0.5}, "says partial_rotary_factor: 0.5, and transformers rotates"),
        (LLAMA | {"logit_scale": 2.0}, 'says "logit_scale": 2.0, which is unknown'),
        (LLAMA | {"is_causal": None}, 'says "is_causal": null, which is unknown'),
        (LLAMA | {"quantization_config": {"bits": 4}}, "says quantization_config: .*only null works"),
        (LLAMA | {"rms_norm_eps": "1e-6"}, 'says rms_norm_eps: "1e-6"; it must be a number above zero'),
        (LLAMA | {"rms_norm_eps": 10**400}, "rms_norm_eps: 10+.*; it must be a number above zero"),
        (LLAMA | {"norm_eps": 1e-5}, 'says "norm_eps": 1e-05, which is unknown'),
        (LLAMA | {"tie_word_embeddings": None}, "says tie_word_embeddings: null; it must be true or false"),
        (LLAMA | {"rope_theta": 1e4, "rope_parameters": {"rope_theta": 5e5}}, "10000.0 on top and 500000.0 for rotary"),
        (LLAMA | {"rope_scaling": {"rope_type": "default"}, "rope_parameters": {"rope_theta": 5e5}}, "another in"),
        (LLAMA | {"rope_scaling": "linear"}, 'says rope_scaling: "linear"; it must be a mapping'),
        (LLAMA | {"rope_scaling": {"type": "llama3", "rope_type": "default"}}, "of type"),
        (LLAMA | {"rope_scaling": {"type": "default", "factor": 8.0}}, "says factor: 8.0 for rotary positions"),
        (LLAMA | {"rope_scaling": {"type": "llama3", "factor": 8.0}}, "has no low_freq_factor"),
        (NEMOTRON | {"rope_scaling": LONG}, "of type llama3, which versions 4 and 5 of transformers do not"),
        (QWEN | {"attention_bias": False}, 'says "attention_bias": false, which is unknown'),
        (LLAMA | {"model_type": "qwen2"}, 'LlamaForCausalLM, but model_type: "qwen2" is of another model'),
        (LLAMA | {"architectures": "LlamaForCausalLM"}, "known language models are LlamaForCausalLM, Mistral"),
        (LLAMA | {"architectures": [["a"]]}, "known language models are"),
    ],
)  # fmt: skip
def test_what_a_family_does_not_say_is_refused_by_its_key(config: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError, match=said):
        arguments_of(config)


def test_a_share_of_a_head_goes_out_where_the_family_reads_it() -> None:
    sizes: dict[str, Any] = {"vocab": 96, "width": 48, "depth": 1, "heads": 6, "mlp_hidden": 24}
    half = TextRope(share=0.5)
    with pytest.raises(DataError, match=r"the nearest, \w+, cannot say rope\.share 0\.5"):
        config_of(GPT(**sizes, rope=half, qk_norm=True), 64)
    phi = config_of(GPT(**sizes, rope=half), 64)
    assert (phi["model_type"], phi["partial_rotary_factor"]) == ("phi3", 0.5)
    with pytest.raises(DataError, match=r"cannot say .*rope\.long_context"):
        config_of(GPT(**sizes, rope=TextRope(share=0.5, long_context=LongContext()), norm="layernorm1p",
                      activation="gelu"), 64)  # fmt: skip
    nemotron = GPT(**sizes, rope=half, norm="layernorm1p", activation="squared_relu")
    assert config_of(nemotron, 64)["partial_rotary_factor"] == 0.5
    assert "partial_rotary_factor" not in config_of(GPT(**sizes), 64)


def test_all_keys_that_are_not_known_are_named_at_once_and_marks_of_programs_are_passed() -> None:
    with pytest.raises(DataError) as error:
        arguments_of(LLAMA | {"logit_scale": 2.0, "mup": True, "embedding_scale": 12.0})
    assert all(key in str(error.value) for key in ("logit_scale", "mup", "embedding_scale"))
    with pytest.raises(DataError) as error:
        arguments_of(LLAMA | {"attention_bias": True, "use_mrope": True})
    assert "attention_bias: true (only false works), use_mrope: true" in str(error.value)
    marks = {"is_llama_config": True, "use_mrope": False, "rope_interleaved": False, "unsloth_version": "2025.1",
             "unsloth_fixed": True, "transformers.js_config": {}}  # fmt: skip
    assert arguments_of(LLAMA | marks) == arguments_of(LLAMA)
