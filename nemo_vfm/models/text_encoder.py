"""Embeds captions as one vector per word: a text encoder with nothing to train or download.

A word's vector is a sum of signed random features (Weinberger et al. 2009, section 2) of the word, of the groups of
letters inside it, and of the word before it. Equal words get equal vectors, words with one stem similar ones, and all
others are nearly orthogonal. That is enough for a small vocabulary.
Shape letters: B batch, L text tokens, D width of a token.
"""

import hashlib
import re
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from nemo_vfm.core.bounds import MAX_TEXT_TOKENS, MAX_WIDTH, require_between
from nemo_vfm.core.log import warn_once

_MAX_LETTERS = 1_000  # no word is longer
_WORD = re.compile(r"\w+(?:'\w+)?")
_EMPTY = "\x00empty"


class HashedNgrams:
    """Weight-free word vectors of length 1.

    Args:
        dim: D, width of a token, a multiple of 8.
        max_tokens: L; further words are cut off.
        ngram: letters in a group; words are framed by `<` and `>` first, so beginnings and endings count.
        ngram_weight: weight of all groups of letters together, beside the word's own weight of 1.
        context_weight: weight of the word before, which tells "a over b" from "b over a". 0 gives each word one
            vector wherever it stands, which carries over best to combinations that were never seen together.
    """

    def __init__(
        self, *, dim: int = 256, max_tokens: int = 32, ngram: int = 3, ngram_weight: float = 0.5,
        context_weight: float = 0.25,
    ) -> None:  # fmt: skip
        if dim < 8 or dim % 8:
            raise ValueError(f"dim must be a positive multiple of 8, got {dim}")
        require_between(8, MAX_WIDTH, dim=dim)
        require_between(1, MAX_TEXT_TOKENS, max_tokens=max_tokens)
        require_between(1, _MAX_LETTERS, ngram=ngram)
        if ngram_weight < 0 or context_weight < 0:
            raise ValueError(f"ngram_weight ({ngram_weight}) and context_weight ({context_weight}) cannot be negative")
        self.dim, self.max_tokens, self.ngram = dim, max_tokens, ngram
        self.ngram_weight, self.context_weight = ngram_weight, context_weight

    def encode(self, captions: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Vectors (B, L, D), fp32, zero after the text's end, and a mask (B, L), True at words.

        A text without a word gives one token of its own, the same for every such text.
        """
        warn_of_cut(self.num_cut(captions), self.max_tokens)
        text_BLD = torch.zeros(len(captions), self.max_tokens, self.dim)
        mask_BL = torch.zeros(len(captions), self.max_tokens, dtype=torch.bool)
        for row, caption in enumerate(captions):
            words = _WORD.findall(caption.lower())[: self.max_tokens] or [_EMPTY]
            for place, (word, previous) in enumerate(zip(words, ["", *words[:-1]], strict=True)):
                framed = f"<{word}>"
                groups = [framed[i : i + self.ngram] for i in range(max(len(framed) - self.ngram + 1, 1))]
                # Independent signs add in squares: a share of the squared weight.
                each = self.ngram_weight / len(groups) ** 0.5
                features = [(f"word:{word}", 1.0), *((f"ngram:{group}", each) for group in groups)]
                if previous:
                    features.append((f"before:{previous}", self.context_weight))
                vector = torch.zeros(self.dim)
                for feature, weight in features:
                    vector += weight * _signs(feature, self.dim)
                text_BLD[row, place] = vector / vector.square().sum().sqrt()
            mask_BL[row, : len(words)] = True
        return text_BLD, mask_BL

    def num_cut(self, captions: Sequence[str]) -> int:
        return sum(len(_WORD.findall(caption)) > self.max_tokens for caption in captions)

    def text_shape(self) -> tuple[int, int]:
        """(L, D)."""
        return self.max_tokens, self.dim

    def fingerprint(self) -> str:
        """All that the vectors depend on."""
        return (
            f"hashed-ngrams/1 dim={self.dim} tokens={self.max_tokens} ngram={self.ngram} "
            f"ngram_weight={self.ngram_weight!r} context_weight={self.context_weight!r}"
        )


def warn_of_cut(count: int, max_tokens: int) -> None:
    """Say once that texts are cut; the jobs that embed captions count them."""
    if count:
        warn_once(f"texts of more than {max_tokens} tokens are cut there by the text encoder (max_tokens)")


@lru_cache(maxsize=65_536)
def _signs(feature: str, dim: int) -> Tensor:
    """`dim` signs from the feature's SHAKE-256 digest: the same on every machine, unlike `hash()`."""
    digest = torch.frombuffer(bytearray(hashlib.shake_256(feature.encode()).digest(dim // 8)), dtype=torch.uint8)
    bits = (digest[:, None] >> torch.arange(8)) & 1
    return bits.flatten().float() * 2 - 1
