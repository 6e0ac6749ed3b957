"""Runs the model over a piece of one prompt, or over one new token of each of several texts.

Shape letters: S tokens of a piece, N texts, R rows of a pass, D width, V vocabulary.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from nemo_vfm.models.blocks.text.decoder import AttentionCache, TextContext
from nemo_vfm.models.gpt import GPT
from nemo_vfm.parallel.engine.serving_ranks import ServingRanks
from nemo_vfm.serve.continuous.key_value_room import DecodeAttention, JointAttention, KeyValueRoom, PromptAttention
from nemo_vfm.serve.continuous.packed_block import pack_modules
from nemo_vfm.serve.continuous.rotary_table import RotaryTable
from nemo_vfm.serve.continuous.row_counts import invariant_row_counts, joint_rows, prompt_rows, rows_for
from nemo_vfm.serve.continuous.span_allocator import Span


class ModelPasses:
    """A model and its room for keys and values.

    Args:
        model: on one device, in evaluation mode. Its modules are replaced by packed ones.
        room: of the keys and values.
        most_rows: texts that get their next token in one pass; fewer where bits would depend on a row's place.
        most_joint_rows: of a pass over new tokens and a prompt; fewer where bits would depend on their number.
        ranks: that the model is split over; None where one device has all of it. Each of them makes every call.
    """

    def __init__(
        self, model: GPT, room: KeyValueRoom, most_rows: int, most_joint_rows: int = 192, *,
        ranks: ServingRanks | None = None,
    ) -> None:  # fmt: skip
        self.model, self.room, self._ranks = model, room, ranks
        self._device, near = model.embedding.weight.device, None if model.window is None else model.window.rope
        self._far = RotaryTable(model.rope, model.rotated, self._device)
        self._near = None if near is None else RotaryTable(near, near.rotated(model.sizes.head_dim), self._device)
        pack_modules(model)
        self.row_counts = invariant_row_counts(self._probed, min(most_rows, room.num_tokens))
        self._joint_rows = joint_rows(self._probed, self.row_counts, min(most_joint_rows, room.num_tokens))

    @property
    def most_rows(self) -> int:
        """Texts of one `decode`."""
        return self.row_counts[-1]

    @torch.inference_mode()
    def prompt(self, span: Span, done: int, tokens: Sequence[int]) -> Tensor:
        """(S, D): the vectors after the next tokens of a text of which `done` are in."""
        rows = prompt_rows(len(tokens))
        attention, fill = PromptAttention(self.room, span, done, len(tokens), rows), [0] * (rows - len(tokens))
        places = [*range(done, done + len(tokens)), *fill]
        return self._vectors([*tokens, *fill], places, [span.length] * rows, attention)[: len(tokens)]

    @torch.inference_mode()
    def decode(self, texts: Sequence[tuple[Span, int]], tokens: Sequence[int]) -> Tensor:
        """(N, V): scores after one more token of each text; bitwise the same for any neighbours.

        Args:
            texts: (span, tokens that are in already) of each.
            tokens: the one that follows.
        """
        rows = rows_for(self.row_counts, len(texts))
        return self._decoded(texts, tokens, rows)[: len(texts)]

    def can_join(self, num_texts: int, num_tokens: int) -> bool:
        """Whether `joint` takes so many, with the bits that `decode` and `prompt` give."""
        return num_texts <= self.most_rows and prompt_rows(num_texts + num_tokens) <= self._joint_rows

    @torch.inference_mode()
    def joint(
        self, texts: Sequence[tuple[Span, int]], new: Sequence[int], span: Span, done: int, tokens: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        """What `decode` and `prompt` give, from one pass: the weights are read once.

        Args:
            texts: (span, tokens that are in already) of each text that runs.
            new: the token that follows.
            span: of another text's prompt.
            done: tokens of it that are in already.
            tokens: its next ones.
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

    def _decoded(self, texts: Sequence[tuple[Span, int]], tokens: Sequence[int], rows: int) -> Tensor:
        fill = [0] * (rows - len(texts))
        places, lengths = [done for _, done in texts] + fill, [span.length for span, _ in texts] + fill
        return self._scores(self._vectors([*tokens, *fill], places, lengths, DecodeAttention(self.room, texts, rows)))

    def _vectors(
        self, tokens: Sequence[int], places: Sequence[int], lengths: Sequence[int], attention: AttentionCache
    ) -> Tensor:
        places_R, lengths_R = torch.tensor(places), torch.tensor(lengths)
        near = None if self._near is None else self._near.at(places_R, lengths_R)
        context = TextContext(*self._far.at(places_R, lengths_R), None, attention, near)
        return self.model.run_blocks(self.model.embedded(torch.tensor([tokens], device=self._device)), context)[0]

    @torch.inference_mode()
    def _probed(self, order: list[int]) -> Tensor:
        """Scores of texts of one token each, as one batch without filling."""
        tokens = [(7 * number + 1) % self.model.vocab for number in order]
        return self._decoded([(Span(number, 1), 0) for number in order], tokens, len(order))
