"""Writes random text models of two layers and width 16 to folders, one for each family of text encoders."""

from pathlib import Path

import torch
import transformers as hf
from transformers import PretrainedConfig, PreTrainedModel

from tests.support.tiny_models import TWO, tokenizer

_WORDS = {"vocab_size": len(tokenizer()), "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_VISION = {"image_size": 28, "patch_size": 14, "projection_dim": 16, **TWO}
_T5 = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_decoder_layers": 1, "num_heads": 2}
_LLM = {"num_key_value_heads": 1, "max_position_embeddings": 256, "initializer_range": 0.5, **TWO, **_WORDS}
_TEXT = {"max_position_embeddings": 48, **TWO, **_WORDS}
#: Positions of the tiny Qwen-VL's three axes fill half a head of 8.
_ROPE = {"rope_type": "default", "mrope_section": [2, 1, 1], "rope_theta": 10_000.0}


def _qwen_vl() -> tuple[type[PreTrainedModel], PretrainedConfig]:
    vision = {"depth": 1, "hidden_size": 16, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 16}
    config = hf.Qwen2_5_VLConfig(text_config={**_LLM, "rope_parameters": _ROPE}, vision_config=vision)
    return hf.Qwen2_5_VLForConditionalGeneration, config


def _two_towers(config: type[PretrainedConfig], **more: int) -> PretrainedConfig:
    return config(text_config={**_TEXT, "projection_dim": 16, "projection_size": 16}, vision_config=_VISION, **more)


MODELS = {
    "t5": lambda: (hf.T5ForConditionalGeneration, hf.T5Config(**_T5, **_WORDS, decoder_start_token_id=0)),
    "umt5": lambda: (hf.UMT5EncoderModel, hf.UMT5Config(**_T5, **_WORDS)),
    "bart": lambda: (
        hf.BartModel,
        hf.BartConfig(d_model=16, encoder_layers=2, decoder_layers=1, encoder_attention_heads=2,
                      decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32,
                      max_position_embeddings=64, **_WORDS),
    ),
    "clip": lambda: (hf.CLIPModel, _two_towers(hf.CLIPConfig, projection_dim=16)),
    "clip_text": lambda: (hf.CLIPTextModel, hf.CLIPTextConfig(**_TEXT, projection_dim=16)),
    "siglip": lambda: (hf.SiglipModel, _two_towers(hf.SiglipConfig)),
    "bert": lambda: (hf.BertForMaskedLM, hf.BertConfig(**_TEXT)),
    "modernbert": lambda: (
        hf.ModernBertModel,
        hf.ModernBertConfig(**_TEXT, cls_token_id=1, sep_token_id=2, local_attention=8, global_attn_every_n_layers=2),
    ),
    "llama": lambda: (hf.LlamaForCausalLM, hf.LlamaConfig(**_LLM)),
    "qwen3": lambda: (hf.Qwen3ForCausalLM, hf.Qwen3Config(**_LLM, head_dim=8)),
    "qwen_vl": _qwen_vl,
}  # fmt: skip


def text_folder(folder: Path, family: str) -> Path:
    """A model with its tokenizer of single bytes; weights large enough that texts differ."""
    torch.manual_seed(0)
    kind, config = MODELS[family]()
    model = kind(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    words = tokenizer(ends=family not in ("llama", "qwen3", "qwen_vl"))
    words.padding_side = "left" if family in ("llama", "qwen3", "qwen_vl") else "right"
    if family == "llama":
        words.pad_token = None
    words.save_pretrained(folder)
    return folder
