"""Runs the model over a piece of one prompt, or over one new token of each of several texts.

Shape letters: S tokens of a piece, N texts, R rows of a pass, D width, V vocabulary, E the rotated part of a head.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from nemo_vfm.models.blocks.text.decoder import AttentionCache, Rotation, TextContext
from nemo_vfm.models.blocks.text.rope_scaling import LongRope
from nemo_vfm.models.blocks.text_rope import TextRope
from nemo_vfm.models.gpt import GPT
from nemo_vfm.parallel.engine.serving_ranks import ServingRanks
from nemo_vfm.serve.continuous.key_value_room import (
    DecodeAttention,
    JointAttention,
    KeyValueRoom,
    PromptAttention,
    RoomSpan,
)
from nemo_vfm.serve.continuous.packed_block import pack_modules

#: Takes the numbers of rows in a batch, in their order; returns the scores of each.
Probe = Callable[[list[int]], Tensor]


class ModelPasses:
    """A model and its room for keys and values.

    Args:
        model: on one device, in evaluation mode. Its modules are replaced by packed ones.
        room: of the keys and values.
        max_rows: texts that get their next token in one pass; fewer where bits would depend on a row's place.
        max_joint_rows: of a pass over new tokens and a prompt; fewer where bits would depend on their number.
        ranks: that the model is split over; None where one device has all of it. Each of them makes every call.
    """

    def __init__(
        self, model: GPT, room: KeyValueRoom, max_rows: int, max_joint_rows: int = 192, *,
        ranks: ServingRanks | None = None,
    ) -> None:  # fmt: skip
        self.model, self.room, self._ranks = model, room, ranks
        self._device, near = model.embedding.weight.device, None if model.window is None else model.window.rope
        self._far = RotaryTable(model.rope, model.rotated, self._device)
        self._near = None if near is None else RotaryTable(near, near.rotary_dim(model.sizes.head_dim), self._device)
        pack_modules(model)
        self.row_counts = invariant_row_counts(self._probe, min(max_rows, room.num_tokens))
        self.max_rows = self.row_counts[-1]  #: texts of one `decode`
        self._joint_rows = joint_rows(self._probe, self.row_counts, min(max_joint_rows, room.num_tokens))

    @torch.inference_mode()
    def prompt(self, span: RoomSpan, done: int, tokens: Sequence[int]) -> Tensor:
        """(S, D): the vectors after the next tokens of a text of which `done` are in."""
        rows = prompt_rows(len(tokens))
        attention, fill = PromptAttention(self.room, span, done, len(tokens), rows), [0] * (rows - len(tokens))
        places = [*range(done, done + len(tokens)), *fill]
        return self._vectors([*tokens, *fill], places, [span.length] * rows, attention)[: len(tokens)]

    @torch.inference_mode()
    def decode(self, texts: Sequence[tuple[RoomSpan, int]], tokens: Sequence[int]) -> Tensor:
        """(N, V): scores after one more token of each text; bitwise the same for any neighbours.

        Of each text there are its span and how many tokens are in already.
        """
        rows = rows_for(self.row_counts, len(texts))
        return self._decode(texts, tokens, rows)[: len(texts)]

    def can_join(self, num_texts: int, num_tokens: int) -> bool:
        """Whether `joint` takes so many, with the bits that `decode` and `prompt` give."""
        return num_texts <= self.max_rows and prompt_rows(num_texts + num_tokens) <= self._joint_rows

    @torch.inference_mode()
    def joint(
        self,
        texts: Sequence[tuple[RoomSpan, int]],
        new: Sequence[int],
        span: RoomSpan,
        done: int,
        tokens: Sequence[int],
    ) -> tuple[Tensor, Tensor]:
        """What `decode` and `prompt` give, from one pass: the weights are read once.

        The first two arguments are those of `decode`, the others those of `prompt`, of another text.
        """
        rows = prompt_rows(len(texts) + len(tokens))
        fill = [0] * (rows - len(texts) - len(tokens))
        prompt = PromptAttention(self.room, span, done, len(tokens), rows - len(texts))
        attention = JointAttention(DecodeAttention(self.room, texts, len(texts)), len(texts), prompt)
        places = [*(there for _, there in texts), *range(done, done + len(tokens)), *fill]
        lengths = [*(one.length for one, _ in texts), *[span.length] * (rows - len(texts))]
        x_RD = self._vectors([*new, *tokens, *fill], places, lengths, attention)
        x_ND = F.pad(x_RD[: len(texts)], (0, 0, 0, rows_for(self.row_counts, len(texts)) - len(texts)))
        return self._scores(x_ND)[: len(texts)], x_RD[len(texts) : len(texts) + len(tokens)]

    def rest(self) -> None:
        """Is called now and then while there is nothing to do."""

    def close(self) -> None:
        """No more passes."""

    @torch.inference_mode()
    def last_scores(self, x_D: Tensor) -> Tensor:
        """(1, V): scores after a prompt, from the vector of its last token; always as one row."""
        return self._scores(x_D[None])

    @torch.inference_mode()
    def scores(self, x_SD: Tensor) -> Tensor:
        """(S, V)."""
        return self._scores(F.pad(x_SD, (0, 0, 0, prompt_rows(len(x_SD)) - len(x_SD))))[: len(x_SD)]

    def _scores(self, x_RD: Tensor) -> Tensor:
        found: Tensor = self.model.head(self.model.norm(x_RD))
        return found if self._ranks is None else self._ranks.all_columns(found)

    def _decode(self, texts: Sequence[tuple[RoomSpan, int]], tokens: Sequence[int], rows: int) -> Tensor:
        fill = [0] * (rows - len(texts))
        places, lengths = [done for _, done in texts] + fill, [span.length for span, _ in texts] + fill
        return self._scores(self._vectors([*tokens, *fill], places, lengths, DecodeAttention(self.room, texts, rows)))

    def _vectors(
        self, tokens: Sequence[int], places: Sequence[int], lengths: Sequence[int], attention: AttentionCache
    ) -> Tensor:
        places_R, lengths_R = torch.tensor(places), torch.tensor(lengths)
        near = None if self._near is None else self._near.at(places_R, lengths_R)
        context = TextContext(*self._far.at(places_R, lengths_R), None, attention, near)
        return self.model.run_blocks(self.model.embed_tokens(torch.tensor([tokens], device=self._device)), context)[0]

    @torch.inference_mode()
    def _probe(self, order: list[int]) -> Tensor:
        """Scores of texts of one token each, as one batch without filling."""
        tokens = [(7 * number + 1) % self.model.vocab for number in order]
        return self._decode([(RoomSpan(number, 1), 0) for number in order], tokens, len(order))


def candidates(most: int) -> list[int]:
    """Numbers of rows to choose from, ascending: fine steps below 32, where a row more costs most."""
    steps = [1, 2, 4, 6, 8, 10, 12, 14, *range(16, 32, 4), *range(32, 64, 8), *range(64, 4096, 32)]
    return [*(step for step in steps if step < most), most]


def invariant_row_counts(probe: Probe, most: int) -> tuple[int, ...]:
    """Numbers of rows, ascending, in which every row has the same bits; the last is the largest batch to use.

    A library of matrix products chooses its kernel by the number of rows, and kernels sum in different orders. Where 1
    row and 16 rows take different ones, a text alone is filled up to the smallest number that agrees with the largest.

    Args:
        probe: runs texts as one batch.
        most: rows wanted at once; fewer are returned only where a row's place in such a batch matters.
    """
    for largest in reversed(candidates(most)):
        expected = probe(list(range(largest)))
        if torch.equal(probe(list(reversed(range(largest)))).flip(0), expected):
            smaller = candidates(largest)[:-1]
            return (*(n for n in smaller if torch.equal(probe(list(range(n))), expected[:n])), largest)
    return (1,)


def prompt_rows(tokens: int) -> int:
    """How many rows a piece of a prompt is filled up to.

    oneDNN keeps compiled code for every number of rows that it meets. A server of 136 MB of weights held 90 MB of it
    after prompts of all lengths up to 128.
    """
    step = 8 if tokens <= 32 else 16 if tokens <= 128 else 64
    return -(-tokens // step) * step


def joint_rows(probe: Probe, counts: tuple[int, ...], most: int) -> int:
    """The most rows up to which every number of `prompt_rows` gives a row the bits that `counts` give it."""
    expected, found = probe(list(range(counts[-1]))), 0
    for rows in dict.fromkeys(map(prompt_rows, range(1, most + 1))):
        common = min(rows, counts[-1])
        if rows > most or not torch.equal(probe(list(range(rows)))[:common], expected[:common]):
            break
        found = rows
    return found


def rows_for(counts: tuple[int, ...], texts: int) -> int:
    """The smallest of the counts that holds so many texts."""
    return counts[bisect_left(counts, texts)]


_BLOCK = 1024


class RotaryTable:
    """Cosines and sines of rotary positions, computed as far as texts have come, in blocks of a fixed size.

    A vectorised cosine and a scalar one differ in the last bit, and how many values are computed at once decides which
    is taken. Blocks of one size give a position the same bits in every batch. Where positions depend on the length of a
    text (LongRoPE), that is the length of its room from its first token on, so its keys stay valid however long it
    gets.
    """

    def __init__(self, rope: TextRope, rotated: int, device: torch.device) -> None:
        self._rope, self._rotated, self._device = rope, rotated, device
        scaling = rope.long_context
        self._trained_on = scaling.trained_on if isinstance(scaling, LongRope) else None
        #: Of a text of each kind: usual ones and, where these differ, longer ones.
        self._lengths = [1] if self._trained_on is None else [1, self._trained_on + 1]
        self._known = [self._block(0, length) for length in self._lengths]

    def at(self, places_R: Tensor, lengths_R: Tensor) -> Rotation:
        """(1, R, 1, E) each, of positions in texts of these lengths, both on the CPU."""
        while len(self._known[0][0]) <= int(places_R.max()):
            for kind, (cos, sin) in enumerate(self._known):
                more_cos, more_sin = self._block(len(cos), self._lengths[kind])
                self._known[kind] = torch.cat([cos, more_cos]), torch.cat([sin, more_sin])
        places = places_R.to(self._device)
        cos, sin = (one[places][None] for one in self._known[0])
        if self._trained_on is None:
            return cos, sin
        is_long = (lengths_R > self._trained_on).to(self._device)[None, :, None, None]
        long_cos, long_sin = (one[places][None] for one in self._known[1])
        return torch.where(is_long, long_cos, cos), torch.where(is_long, long_sin, sin)

    def _block(self, first: int, length: int) -> Rotation:
        places = torch.arange(first, first + _BLOCK, device=self._device)[None]
        cos, sin = self._rope.table(self._rotated, places, places.new_full((1, 1), length))
        return cos[0], sin[0]
