# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
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
FAMILIES: dict[str, tuple[Any, dict[str, Any]]] = {
    "llama": (transformers.LlamaConfig, {}),
    "llama 3.1, tied": (transformers.LlamaConfig, {"rope_parameters": LONG, "tie_word_embeddings": True}),
    "mistral": (transformers.MistralConfig, {"sliding_window": None}),
    "qwen 2": (transformers.Qwen2Config, {"use_sliding_window": False, "head_dim": 8}),
    "qwen 3": (transformers.Qwen3Config, {"use_sliding_window": False}),
    "nemotron": (transformers.NemotronConfig, {"partial_rotary_factor": 0.5, "hidden_act": "relu2"}),
}


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
