"""Writes small random language models as transformers does, and computes our scores."""

from pathlib import Path
from typing import Any

import torch
import transformers

from nemo_vfm.models.gpt import GPT

SIZES: dict[str, Any] = {
    "vocab_size": 96, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 6,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "head_dim": 8,
}  # fmt: skip
LONG = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16}
FAMILIES: dict[str, tuple[Any, dict[str, Any]]] = {
    "llama": (transformers.LlamaConfig, {}),
    "llama 3.1, tied": (transformers.LlamaConfig, {"rope_parameters": LONG, "tie_word_embeddings": True}),
    "mistral": (transformers.MistralConfig, {"sliding_window": None}),
    "mistral 0.1": (transformers.MistralConfig, {"sliding_window": 12}),
    "llama, linear": (transformers.LlamaConfig, {"rope_parameters": {"rope_type": "linear", "factor": 4.0}}),
    "qwen 2 in windows, yarn": (transformers.Qwen2Config, {
        "use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1, "head_dim": 8,
        "rope_parameters": YARN | {"beta_fast": 4.0}}),
    "qwen 3 in some windows": (transformers.Qwen3Config, {
        "use_sliding_window": True, "sliding_window": 9, "rope_parameters": YARN | {"truncate": False},
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}),
    "qwen 2": (transformers.Qwen2Config, {"use_sliding_window": False, "head_dim": 8}),
    "qwen 3": (transformers.Qwen3Config, {"use_sliding_window": False}),
    "phi 3": (transformers.Phi3Config, {"sliding_window": 12, "pad_token_id": 0, "eos_token_id": 2}),
    "phi 4 mini": (transformers.Phi3Config, {
        "partial_rotary_factor": 0.5, "tie_word_embeddings": True, "original_max_position_embeddings": 16,
        "pad_token_id": 0, "eos_token_id": 2, "rope_parameters": {
            "rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0, 1.5], "long_factor": [2.0, 5.0]}}),
    "gemma 3": (transformers.Gemma3TextConfig, {
        "sliding_window": 9, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "query_pre_attn_scalar": 30}),
    "gemma 3, linear": (transformers.Gemma3TextConfig, {
        "sliding_window": 9, "sliding_window_pattern": 2, "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        "rope_theta": 5e5, "rope_local_base_freq": 100.0}),
    "qwen 3 moe": (transformers.Qwen3MoeConfig, {
        "num_experts": 7, "num_experts_per_tok": 3, "moe_intermediate_size": 24, "norm_topk_prob": True}),
    "qwen 3 moe in windows": (transformers.Qwen3MoeConfig, {
        "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "mlp_only_layers": [1],
        "use_sliding_window": True, "sliding_window": 9}),
    "nemotron": (transformers.NemotronConfig, {"partial_rotary_factor": 0.5, "hidden_act": "relu2"}),
}  # fmt: skip


def written(folder: Path, family: str, head: Any = transformers.AutoModelForCausalLM, **more: Any) -> Any:
    """A random model of transformers, saved to the folder: norms and biases are no ones and zeros."""
    kind, own = FAMILIES[family]
    torch.manual_seed(0)
    model = head.from_config(kind(**(SIZES | own | more))).eval()
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
