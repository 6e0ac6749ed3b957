"""Writes a small byte-level tokenizer with the control tokens of many chat formats to a folder."""

from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

TEXTS = [
    "The quick brown fox jumps over the lazy dog.",
    "user assistant system tool",
    "Why? Because! Étude, 日本語.",
] * 20
SPECIAL = [
    "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>",
    "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>", "<|user|>",
    "<|assistant|>", "<|system|>", "<|end|>", "<s>", "</s>",
]  # fmt: skip
#: Found in a text, but not special.
ADDED = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]


def write_tokenizer(folder: Path, template: str) -> PreTrainedTokenizerFast:
    """The folder as transformers saves it, and transformers' own tokenizer."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(TEXTS, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False))
    made.add_special_tokens([AddedToken(one, special=True, normalized=False) for one in SPECIAL])
    made.add_tokens([AddedToken(one, special=False, normalized=False) for one in ADDED])
    theirs = PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<|begin_of_text|>", eos_token="<|im_end|>", pad_token="<|endoftext|>",
        chat_template=template,
    )  # fmt: skip
    theirs.save_pretrained(folder)
    return theirs
