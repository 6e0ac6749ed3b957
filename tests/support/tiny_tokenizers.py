"""Writes small tokenizers with the libraries that write the published ones."""

import io
from pathlib import Path

LINES = [
    "The miller's cat has 7 kittens, and 12 of the 365 mice were afraid of them.",
    "Il était une fois un meunier; naïve façade, déjà vu.",
    "for i in range(10):\n    print(i ** 2)  # squares",
    "  Two spaces   and\ttabs, then nothing.  ",
    "мама мыла раму 东京 東京都 🦊🎉",
    "It's what we'll see: don't, can't, won't; the cat sat on the mat by the mill.",
]
#: What a tokenizer is asked besides: the empty text, spaces alone, half letters, names of special tokens.
STRANGE = ["", " ", "\n\n", "a", "▁x", "the<|end|>cat", "x </s> y", "é", "e\u0301", "ﬁ", "\x00\x01", "🏴‍☠️", "𝔘" * 3]
TEXTS = [*LINES, *STRANGE, " ".join(LINES)]


def byte_level(folder: Path, *, split_digits: bool = False) -> Path:
    """Byte-level BPE as of GPT-2, Llama 3 and Qwen, saved by transformers."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE())
    level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    digits = pre_tokenizers.Digits(individual_digits=True)
    made.pre_tokenizer = pre_tokenizers.Sequence([digits, level]) if split_digits else level
    made.decoder = decoders.ByteLevel()
    made.train_from_iterator(LINES * 4, trainers.BpeTrainer(
        vocab_size=380, special_tokens=["<|begin|>", "<|end|>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))  # fmt: skip
    whole = PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<|begin|>", eos_token="<|end|>")
    whole.add_special_tokens({"pad_token": "<|pad|>"})
    whole.save_pretrained(folder)
    return folder


def metaspace(folder: Path) -> Path:
    """BPE with byte fallback as of Llama 2 and Mistral 7B, saved by transformers."""
    from transformers import LlamaTokenizer

    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    words = ["▁", *"abcdefghijklmnopqrstuvwxyzTI", "th", "▁t", "he", "▁the", "at", "cat", "▁cat", "▁m", "▁mi", "ll"]
    merges = [("t", "h"), ("▁", "t"), ("h", "e"), ("▁t", "he"), ("a", "t"), ("c", "at"), ("▁", "cat"), ("▁", "m"),
              ("▁m", "i"), ("l", "l")]  # fmt: skip
    LlamaTokenizer(vocab={name: n for n, name in enumerate(names + words)}, merges=merges).save_pretrained(folder)
    return folder


def unigram(folder: Path) -> Path:
    """Unigram with a normaliser, as of T5, saved by transformers."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.Unigram())
    made.normalizer = normalizers.NFKC()
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    made.train_from_iterator(LINES * 4, trainers.UnigramTrainer(
        vocab_size=150, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False))  # fmt: skip
    PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token="</s>", unk_token="<unk>", pad_token="<pad>"
    ).save_pretrained(folder)
    return folder


def sentence_piece(folder: Path, kind: str = "bpe") -> Path:
    """tokenizer.model alone, as Llama 2's authors published theirs."""
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter("\n".join(LINES * 4).split("\n")), model_writer=model, model_type=kind, vocab_size=420,
        byte_fallback=True, character_coverage=0.98, normalization_rule_name="identity",
        remove_extra_whitespaces=False, hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.model").write_bytes(model.getvalue())
    return folder
