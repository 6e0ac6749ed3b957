"""Writes a random model of two layers, as transformers does, with a tokenizer of single bytes."""

from pathlib import Path

import torch
import transformers as hf
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

SPECIAL = ["<pad>", "<s>", "</s>", "<image>", "<unk>"]
TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}: {% if m['content'] is string %}{{ m['content'] }}{% else %}"
    "{% for c in m['content'] %}{% if c['type'] == 'image' %}<image>{% else %}{{ c['text'] }}{% endif %}{% endfor %}"
    "{% endif %}\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
)
TWO = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}


def tokenizer(ends: bool = False) -> hf.PreTrainedTokenizerFast:
    """Every byte a token; `ends` puts `</s>` behind each text, as T5's does."""
    vocabulary = {word: index for index, word in enumerate([*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())])}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    if ends:
        made.post_processor = processors.TemplateProcessing("$A </s>", special_tokens=[("</s>", 2)])
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>",
        additional_special_tokens=["<image>"],
    )  # fmt: skip


def _llama(words: int) -> hf.LlamaConfig:
    return hf.LlamaConfig(vocab_size=words, num_key_value_heads=2, max_position_embeddings=4096, pad_token_id=0,
                       bos_token_id=1, eos_token_id=2, initializer_range=0.5, **TWO)  # fmt: skip


def _pictures() -> CLIPImageProcessorPil:
    return CLIPImageProcessorPil(size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28})


def tiny_vlm(folder: Path, seed: int = 0) -> Path:
    """A LLaVA: pictures and text in, text out."""
    torch.manual_seed(seed)
    words = tokenizer()
    vision = hf.CLIPVisionConfig(image_size=28, patch_size=14, **TWO)
    config = hf.LlavaConfig(vision_config=vision, text_config=_llama(len(words)), image_token_id=3)
    hf.LlavaForConditionalGeneration(config).save_pretrained(folder)
    hf.LlavaProcessor(
        _pictures(), words, patch_size=14, vision_feature_select_strategy="default", chat_template=TEMPLATE,
        num_additional_image_tokens=1,
    ).save_pretrained(folder)  # fmt: skip
    return folder


def tiny_lm(folder: Path, seed: int = 0) -> Path:
    """A Llama: text in, text out."""
    torch.manual_seed(seed)
    words = tokenizer()
    words.chat_template = TEMPLATE
    hf.LlamaForCausalLM(_llama(len(words))).save_pretrained(folder)
    words.save_pretrained(folder)
    return folder


def tiny_t5(folder: Path, seed: int = 0) -> Path:
    """The encoder of a T5, of width 16."""
    torch.manual_seed(seed)
    words = tokenizer(ends=True)
    config = hf.T5Config(vocab_size=len(words), d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, pad_token_id=0,
                      eos_token_id=2, feed_forward_proj="gated-gelu")  # fmt: skip
    hf.T5EncoderModel(config).save_pretrained(folder)
    words.save_pretrained(folder)
    return folder


def tiny_clip(folder: Path, seed: int = 0) -> Path:
    """A CLIP: texts and pictures in, vectors of width 16 out."""
    torch.manual_seed(seed)
    words = tokenizer(ends=True)
    words.model_max_length = 77
    text = hf.CLIPTextConfig(vocab_size=len(words), max_position_embeddings=77, projection_dim=16, pad_token_id=0,
                          bos_token_id=1, eos_token_id=2, **TWO)  # fmt: skip
    vision = hf.CLIPVisionConfig(image_size=28, patch_size=14, projection_dim=16, **TWO)
    hf.CLIPModel(
        hf.CLIPConfig(text_config=text.to_dict(), vision_config=vision.to_dict(), projection_dim=16)
    ).save_pretrained(folder)
    hf.CLIPProcessor(_pictures(), words).save_pretrained(folder)
    return folder
