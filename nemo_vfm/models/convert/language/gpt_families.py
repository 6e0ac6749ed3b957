"""Lists which settings each architecture of transformers has for a language model, and their defaults.

Defaults are those of transformers 5. A key of config.json that is in none of these tables is refused: it may change the
function.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from nemo_vfm.core.types.json_value import Json
from nemo_vfm.models.blocks.text.decoder import NormKind
from nemo_vfm.models.blocks.text.experts import Activation

_GATED: dict[str, Activation] = {"silu": "swiglu", "swish": "swiglu"}
_GEMMA: dict[str, Activation] = {"gelu_pytorch_tanh": "geglu"}
_PLAIN: dict[str, Activation] = {"relu2": "squared_relu", "gelu": "gelu"}
#: What a mixture of experts says of itself.
EXPERT_KEYS = frozenset({
    "num_experts", "num_local_experts", "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob",
    "router_aux_loss_coef", "mlp_only_layers", "decoder_sparse_step",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class GptFamily:
    """One architecture of transformers."""

    architecture: str  #: as config.json names it
    model_type: str  #: as config.json names it
    activations: Mapping[str, Activation]  #: `activation_key` -> ours; the first is meant where the key is missing
    activation_key: str = "hidden_act"  #: the key of the activation
    norm: NormKind = "rmsnorm"  #: of every block
    eps_key: str = "rms_norm_eps"  #: the key of its epsilon
    eps: float = 1e-6  #: where that key is missing
    qkv_bias: bool = False  #: whether queries, keys and values have a bias; no key says it
    qk_norm: bool = False  #: whether queries and keys are normalised; no key says it
    #: `partial_rotary_factor` where it is missing; None rotates whole heads, whatever that key says
    share: float | None = None
    #: types of rotary positions for long texts that versions 4 and 5 of transformers both read
    stretches: frozenset[str] = frozenset({"llama3", "linear", "yarn", "longrope"})
    trained_on: int | None = None  #: `original_max_position_embeddings` where it is missing; None is the longest text
    two_thetas: bool = False  #: whether blocks with a window have rotary positions of their own
    groups: int | None = None  #: `num_key_value_heads` where it is missing; None is one for each head
    head_dim: int | None = None  #: where it is missing; None is width / heads
    #: in which blocks `sliding_window` counts: in none; in all; in all if switched on; if switched on, in those that
    #: `layer_types` or else `max_window_layers` names; or in those that `layer_types` or else a pattern names
    window: Literal["never", "always", "switched", "switched by layer", "by layer"] = "never"
    window_tokens: int | None = None  #: `sliding_window` where it is missing; None has none
    #: whether transformers 5 wants `hidden_size` to be divisible by the heads, `head_dim` or not
    whole_heads: bool = False
    tied: bool = False  #: `tie_word_embeddings` where it is missing
    post_norm: bool = False  #: whether what blocks add is normalised; no key says it
    scale_embedding: bool = False  #: whether embeddings are multiplied by the root of the width; no key says it
    query_scalar: int | None = None  #: `query_pre_attn_scalar` where it is missing; None has no such key
    experts: bool = False  #: whether there is a mixture of experts
    fused: bool = False  #: whether queries, keys and values are one matrix, and the gate and what it gates another
    scored: str = ""  #: the architecture with a head for sequence classification; "" has the same name but for its end
    read: frozenset[str] = frozenset()  #: keys that this family has besides
    ignored: frozenset[str] = frozenset()  #: keys of this family that change nothing of what a model computes
    fixed: Mapping[str, Json] = field(default_factory=dict)  #: keys of this family -> the only value that GPT has


#: By architecture, in the order in which a model of ours looks for one that can say it.
FAMILIES: dict[str, GptFamily] = {
    family.architecture: family
    for family in (
        GptFamily("LlamaForCausalLM", "llama", _GATED, whole_heads=True),
        GptFamily("MistralForCausalLM", "mistral", _GATED, groups=8, window="always", window_tokens=4096),
        GptFamily("Qwen2ForCausalLM", "qwen2", _GATED, qkv_bias=True, groups=32, window="switched by layer",
               window_tokens=4096),
        GptFamily("Qwen3ForCausalLM", "qwen3", _GATED, qk_norm=True, groups=32, head_dim=128,
               window="switched by layer",
               window_tokens=4096),
        GptFamily("NemotronForCausalLM", "nemotron", _PLAIN, norm="layernorm1p", eps_key="norm_eps", eps=1e-5,
               share=0.5,
               stretches=frozenset()),
        GptFamily("Phi3ForCausalLM", "phi3", _GATED, eps=1e-5, share=1.0, stretches=frozenset({"longrope"}),
               trained_on=4096, window="always", fused=True,
               ignored=frozenset({"resid_pdrop", "embd_pdrop", "auto_map"}),
               fixed={"lm_head_bias": False, "full_attn_mod": 1, "interpolate_factor": 1}),
        GptFamily("Gemma3ForCausalLM", "gemma3_text", _GEMMA, "hidden_activation", norm="rmsnorm1p", qk_norm=True,
               groups=4, head_dim=256, stretches=frozenset({"linear", "llama3"}), two_thetas=True, window="by layer",
               window_tokens=4096, whole_heads=True, tied=True, post_norm=True, scale_embedding=True,
               query_scalar=256, scored="Gemma3TextForSequenceClassification",
               read=frozenset({"query_pre_attn_scalar", "sliding_window_pattern", "rope_local_base_freq"}),
               ignored=frozenset({"_sliding_window_pattern"}),
               fixed={"attn_logit_softcapping": None, "final_logit_softcapping": None,
                      "use_bidirectional_attention": False}),
        GptFamily("Qwen3MoeForCausalLM", "qwen3_moe", _GATED, qk_norm=True, groups=4, window="switched",
               window_tokens=4096, experts=True, read=EXPERT_KEYS, ignored=frozenset({"output_router_logits"})),
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
MAX_TOKENS = "max_position_embeddings", 1 << 40

#: Keys that have one meaning in every family, and the only value that GPT has.
FIXED: dict[str, Json] = {
    "attention_bias": False, "mlp_bias": False, "quantization_config": None, "is_encoder_decoder": False,
    "add_cross_attention": False, "use_mrope": False, "rope_interleaved": False, "qk_layernorm": False,
    "attn_logit_softcapping": None, "final_logit_softcapping": None, "compression_config": None,
}  # fmt: skip

#: Keys that some part of the conversion reads, in every family.
READ = frozenset({
    "architectures", "model_type", "tie_word_embeddings", "rope_theta", "rope_scaling",
    "rope_parameters", "partial_rotary_factor", "sliding_window", "use_sliding_window", "layer_types",
    "max_window_layers", "original_max_position_embeddings", MAX_TOKENS[0], *(key for key, _ in SIZES.values()),
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
