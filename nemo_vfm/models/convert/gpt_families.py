# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Lists which settings each architecture of transformers has for a language model, and their defaults.

Defaults are those of transformers 5. A key of config.json that is in none of these tables is refused: it may change the
function.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from nemo_vfm.core.types.json_value import Json
from nemo_vfm.models.blocks.decoder import Activation, NormKind

_GATED: dict[str, Activation] = {"silu": "swiglu", "swish": "swiglu"}
_PLAIN: dict[str, Activation] = {"relu2": "squared_relu", "gelu": "gelu"}


@dataclass(frozen=True, slots=True)
class Family:
    """One architecture of transformers.

    Args:
        architecture: as config.json names it; `model_type` is the same in lower case without its end.
        activations: `hidden_act` -> ours; the first is meant where the key is missing.
        norm: of every block.
        eps_key: the key of its epsilon.
        eps: where that key is missing.
        qkv_bias: whether queries, keys and values have a bias; no key says it.
        qk_norm: whether queries and keys are normalised; no key says it.
        share: `partial_rotary_factor` where it is missing; None rotates whole heads, whatever that key says.
        long_context: whether versions 4 and 5 of transformers both read Llama 3's stretching of positions.
        groups: `num_key_value_heads` where it is missing; None is one for each head.
        head_dim: where it is missing; None is width / heads.
        window: whether `sliding_window` counts: never, always (4096 where it is missing), or behind a switch.
        whole_heads: whether transformers 5 wants `hidden_size` to be divisible by the heads, `head_dim` or not.
    """

    architecture: str
    activations: Mapping[str, Activation]
    norm: NormKind = "rmsnorm"
    eps_key: str = "rms_norm_eps"
    eps: float = 1e-6
    qkv_bias: bool = False
    qk_norm: bool = False
    share: float | None = None
    long_context: bool = True
    groups: int | None = None
    head_dim: int | None = None
    window: Literal["never", "always", "switched"] = "never"
    whole_heads: bool = False

    @property
    def model_type(self) -> str:
        """As config.json names it."""
        return self.architecture.removesuffix("ForCausalLM").lower()


#: By architecture, in the order in which a model of ours looks for one that can say it.
FAMILIES: dict[str, Family] = {
    family.architecture: family
    for family in (
        Family("LlamaForCausalLM", _GATED, whole_heads=True),
        Family("MistralForCausalLM", _GATED, groups=8, window="always"),
        Family("Qwen2ForCausalLM", _GATED, qkv_bias=True, groups=32, window="switched"),
        Family("Qwen3ForCausalLM", _GATED, qk_norm=True, groups=32, head_dim=128, window="switched"),
        Family("NemotronForCausalLM", _PLAIN, norm="layernorm1p", eps_key="norm_eps", eps=1e-5, share=0.5,
               long_context=False),
    )
}  # fmt: skip

#: GPT's argument -> the key of config.json, and the largest value that is taken for no mistake.
SIZES: dict[str, tuple[str, int]] = {
    "vocab": ("vocab_size", 1 << 27),
    "width": ("hidden_size", 1 << 20),
    "depth": ("num_hidden_layers", 1000),
    "heads": ("num_attention_heads", 1 << 14),
    "mlp_hidden": ("intermediate_size", 1 << 20),
    "groups": ("num_key_value_heads", 1 << 14),
    "head_dim": ("head_dim", 1 << 16),
}
MOST_TOKENS = "max_position_embeddings", 1 << 40

#: Keys that have one meaning in every family, and the only value that GPT has.
FIXED: dict[str, Json] = {
    "attention_bias": False, "mlp_bias": False, "quantization_config": None, "is_encoder_decoder": False,
    "add_cross_attention": False, "use_mrope": False, "rope_interleaved": False, "qk_layernorm": False,
    "attn_logit_softcapping": None, "final_logit_softcapping": None, "compression_config": None,
}  # fmt: skip

#: Keys that some part of the conversion reads, in every family.
READ = frozenset({
    "architectures", "model_type", "hidden_act", "tie_word_embeddings", "rope_theta", "rope_scaling",
    "rope_parameters", "partial_rotary_factor", "sliding_window", "use_sliding_window", "layer_types",
    "max_window_layers", MOST_TOKENS[0], *(key for key, _ in SIZES.values()),
})  # fmt: skip

#: Keys that change nothing of what a model computes of given tokens: first weights, dropout in training, dtypes of
#: files, the choice of words, names of classes, versions, marks of the programs that wrote the file.
IGNORED = frozenset({
    "_attn_implementation", "_attn_implementation_autoset", "_attn_implementation_internal", "_commit_hash",
    "_name_or_path", "assistant_confidence_threshold", "assistant_lookbehind", "attention_dropout",
    "attn_implementation", "bad_words_ids", "begin_suppress_tokens", "bos_token_id", "cache_implementation",
    "chunk_size_feed_forward", "decoder_start_token_id", "diversity_penalty", "do_sample", "dtype",
    "early_stopping", "encoder_no_repeat_ngram_size", "encoder_repetition_penalty", "eos_token_id",
    "epsilon_cutoff", "eta_cutoff", "exponential_decay_length_penalty", "finetuning_task", "forced_bos_token_id",
    "forced_eos_token_id", "gradient_checkpointing", "hidden_dropout", "id2label", "initializer_range",
    "is_decoder", "is_llama_config", "keys_to_ignore_at_inference", "label2id", "length_penalty", "max_length",
    "min_length", "name_or_path", "neftune_noise_alpha", "no_repeat_ngram_size", "num_assistant_tokens",
    "num_assistant_tokens_schedule", "num_beam_groups", "num_beams", "num_labels", "num_return_sequences",
    "output_attentions", "output_hidden_states", "output_scores", "pad_token_id", "prefix", "pretraining_tp",
    "problem_type", "remove_invalid_values", "repetition_penalty", "return_dict", "return_dict_in_generate",
    "sep_token_id", "suppress_tokens", "target_lookbehind", "task_specific_params", "temperature",
    "tie_encoder_decoder", "tokenizer_class", "top_k", "top_p", "torch_dtype", "torchscript",
    "transformers.js_config", "transformers_version", "typical_p", "unsloth_fixed", "unsloth_version",
    "use_bfloat16", "use_cache",
})  # fmt: skip
