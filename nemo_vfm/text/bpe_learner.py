"""Learns a byte-level BPE tokenizer like those of GPT-2, Llama 3 and Qwen, by the `tokenizers` library."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from nemo_vfm.core.optional import needs_packages, require
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.text.learner import require_tokens, write_config

_BYTES = 256


@needs_packages("tokenizers")
class ByteLevelBPE:
    """Pairs of bytes are joined, the most frequent ones first (Sennrich et al. 2016); no text is unknown to it.

    Args:
        vocab_size: tokens in all, the 256 bytes and special ones among them; a small text may have fewer.
        end: the token after a document.
        special_tokens: others, such as <|begin|>; they come first, in this order, then `end`.
        split_digits: whether each digit is a separate token, as in Nemotron-4 and Llama 2.
        min_frequency: how often a pair must come to be joined.
    """

    def __init__(
        self, *, vocab_size: int, end: str = "<|endoftext|>", special_tokens: Sequence[str] = (),
        split_digits: bool = True, min_frequency: int = 2,
    ) -> None:  # fmt: skip
        names = (*special_tokens, end)
        require_tokens(vocab_size, names, _BYTES + len(names))
        if min_frequency < 1:
            raise ValueError(f"min_frequency must be at least 1, got {min_frequency}")
        self.vocab_size, self.end, self.special_tokens = vocab_size, end, tuple(special_tokens)
        self.split_digits, self.min_frequency = split_digits, min_frequency

    def settings(self) -> Mapping[str, Json]:
        """See `Learner`."""
        return {"kind": "byte-level BPE", **vars(self), "special_tokens": list(self.special_tokens)}

    def learn(self, texts: Iterable[str], folder: Path) -> None:
        """See `Learner`."""
        library = require("tokenizers", purpose="ByteLevelBPE")
        before, level = library.pre_tokenizers, library.pre_tokenizers.ByteLevel(add_prefix_space=False)
        made = library.Tokenizer(library.models.BPE())
        digits = before.Digits(individual_digits=True)
        made.pre_tokenizer = before.Sequence([digits, level]) if self.split_digits else level
        made.decoder = library.decoders.ByteLevel()
        trainer = library.trainers.BpeTrainer(
            vocab_size=self.vocab_size, min_frequency=self.min_frequency, show_progress=False,
            special_tokens=[*self.special_tokens, self.end], initial_alphabet=before.ByteLevel.alphabet(),
        )  # fmt: skip
        made.train_from_iterator((text.encode(errors="replace").decode() for text in texts), trainer)
        made.save(str(folder / "tokenizer.json"))
        write_config(folder, {"eos_token": self.end}, self.special_tokens)
