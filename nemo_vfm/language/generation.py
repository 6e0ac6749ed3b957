"""Continues texts with a causal model; each text depends on its own seed, not on its neighbours in the batch.

Shape letters: B batch, S tokens, V vocabulary.
"""

from collections.abc import Sequence
from typing import Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn

from nemo_vfm.core.seed import generator
from nemo_vfm.language.token_choice import Choice

Cache = TypeVar("Cache")


@runtime_checkable
class Continues(Protocol[Cache]):
    """A causal model that remembers what it has read."""

    def cache(self, begins_B: Tensor, most: int, dtype: torch.dtype) -> Cache:
        """Room for `most` tokens of texts that begin at these places."""
        ...

    def scores(self, tokens_BS: Tensor, cache: Cache) -> Tensor:
        """Scores of the word after the last token, (B, V)."""
        ...


@torch.no_grad()
def generate(
    model: Continues[Cache], beginnings: Sequence[Sequence[int]], *, max_new: int, choice: Choice,
    seeds: Sequence[int], stop: frozenset[int] = frozenset(), device: torch.device | None = None,
    dtype: torch.dtype = torch.float32,
) -> list[list[int]]:  # fmt: skip
    """The new tokens of each text, without the one that stopped it.

    Args:
        model: in evaluation mode, on `device`.
        beginnings: tokens, at least one each; of any lengths.
        max_new: tokens that a text gets at most.
        choice: how the next token is chosen.
        seeds: one for each text.
        stop: words that end a text.
        device: of the model; None is the CPU.
        dtype: of the keys and values that are kept.
    """
    if len(seeds) != len(beginnings) or not all(beginnings):
        raise ValueError(f"{len(beginnings)} prompts need as many seeds, got {len(seeds)}, and a token each; give an "
                         "empty one the model's beginning-of-text token")  # fmt: skip
    rows = [torch.tensor(list(one)) for one in beginnings]
    read = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_side="left").to(device)
    begins_B = read.shape[1] - torch.tensor([len(one) for one in beginnings], device=device)
    cache = model.cache(begins_B, read.shape[1] + max_new - 1, dtype)  # the last new word is never read
    chance_BS = torch.stack([torch.rand(max_new, generator=generator(seed, "words")) for seed in seeds]).to(read.device)
    texts: list[list[int]] = [[] for _ in beginnings]
    ended = [False] * len(texts)
    for place in range(max_new):
        words_B = choice.draw(model.scores(read, cache), chance_BS[:, place])
        for text, word in enumerate(words_B.tolist()):
            ended[text] = ended[text] or word in stop
            if not ended[text]:
                texts[text].append(word)
        if all(ended):
            break
        read = words_B[:, None]
    return texts
