"""Runs the passes of a model that is split over ranks: rank 0 decides which, and the others follow.

Only rank 0 has a scheduler. Every order names a pass and its arguments; vectors travel as tensors behind it. After an
error in the middle of a pass nobody knows how far the others are, so it ends them all.
Shape letters: S tokens of a piece, N texts, D width, V vocabulary.
"""

from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar

import torch
from torch import Tensor

from nemo_vfm.core.types.json_value import Json
from nemo_vfm.models.gpt import GPT
from nemo_vfm.parallel.engine.serving_ranks import ServingRanks
from nemo_vfm.serve.continuous.key_value_room import KeyValueRoom, RoomSpan
from nemo_vfm.serve.continuous.model_passes import ModelPasses

Result = TypeVar("Result")


class LeadingPasses(ModelPasses):
    """Those of rank 0, which tells the others of each.

    `on_broken` is called after an error, which has left the ranks apart; it must end the process.
    """

    def __init__(
        self, model: GPT, room: KeyValueRoom, max_rows: int, ranks: ServingRanks,
        on_broken: Callable[[Exception], NoReturn],
    ) -> None:  # fmt: skip
        super().__init__(model, room, max_rows, ranks=ranks)
        self._told, self._on_broken = ranks, on_broken

    def prompt(self, span: RoomSpan, done: int, tokens: Sequence[int]) -> Tensor:
        return self._on_ranks(
            ["prompt", span, done, list(tokens)], lambda: ModelPasses.prompt(self, span, done, tokens)
        )

    def decode(self, texts: Sequence[tuple[RoomSpan, int]], tokens: Sequence[int]) -> Tensor:
        return self._on_ranks(["decode", list(texts), list(tokens)], lambda: ModelPasses.decode(self, texts, tokens))

    def joint(
        self,
        texts: Sequence[tuple[RoomSpan, int]],
        new: Sequence[int],
        span: RoomSpan,
        done: int,
        tokens: Sequence[int],
    ) -> tuple[Tensor, Tensor]:
        order: Json = ["joint", list(texts), list(new), span, done, list(tokens)]
        return self._on_ranks(order, lambda: ModelPasses.joint(self, texts, new, span, done, tokens))

    def last_scores(self, x_D: Tensor) -> Tensor:
        return self._on_ranks(["last_scores"], lambda: ModelPasses.last_scores(self, self._told.from_first(x_D)))

    def scores(self, x_SD: Tensor) -> Tensor:
        return self._on_ranks(["scores", len(x_SD)], lambda: ModelPasses.scores(self, self._told.from_first(x_SD)))

    def rest(self) -> None:
        """See `ModelPasses`: an order that asks nothing, lest the others' wait for one runs out."""
        self._on_ranks(["rest"], lambda: None)

    def close(self) -> None:
        self._on_ranks(None, lambda: None)

    def _on_ranks(self, order: Json, work: Callable[[], Result]) -> Result:
        try:
            self._told.tell(order)
            return work()
        except Exception as error:
            self._on_broken(error)


@torch.inference_mode()
def follow(passes: ModelPasses, ranks: ServingRanks) -> None:
    """Run every pass that rank 0 orders, until it says that there are no more."""
    weight, width = passes.model.embedding.weight, passes.model.width
    order: Any
    while (order := ranks.hear()) is not None:
        match order:
            case ["prompt", span, done, tokens]:
                passes.prompt(RoomSpan(*span), done, tokens)
            case ["decode", texts, tokens]:
                passes.decode([(RoomSpan(*one), read) for one, read in texts], tokens)
            case ["joint", texts, new, span, done, tokens]:
                running = [(RoomSpan(*one), read) for one, read in texts]
                passes.joint(running, new, RoomSpan(*span), done, tokens)
            case ["last_scores"]:
                passes.last_scores(ranks.from_first(torch.empty(width, dtype=weight.dtype, device=weight.device)))
            case ["scores", rows]:
                x_SD = torch.empty(rows, width, dtype=weight.dtype, device=weight.device)
                passes.scores(ranks.from_first(x_SD))
            case _:
                assert order == ["rest"], order
