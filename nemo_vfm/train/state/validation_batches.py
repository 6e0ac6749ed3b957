"""Evaluates the held-out batches, each on the ranks of one slice."""

from collections.abc import Iterable, Iterator
from contextlib import nullcontext

from torch import Tensor

from nemo_vfm.core import ranks
from nemo_vfm.core.types.batch import Batch
from nemo_vfm.core.types.task import ModelInputs
from nemo_vfm.train.state.train_state import TrainState


def evaluated(
    fit: TrainState, batches: Iterable[Batch] | None = None
) -> Iterator[tuple[int, Tensor, ModelInputs]]:  # fmt: skip
    """(number, losses_B, inputs) of each batch of this rank's slice, with the averaged weights if there are any.

    Args:
        batches: the same on all ranks; None takes those that are held out.

    Every rank must go to the end: the others may need this rank's part of the weights.
    """
    with fit.ema.applied(fit.model) if fit.ema else nullcontext():
        count, last = 0, None
        for count, last in enumerate(fit.data.val_dataloader() if batches is None else batches, 1):
            if (count - 1) % fit.plan.data == fit.data_rank:
                yield count - 1, *fit.runner.evaluate(last)
        if last is not None and 0 < count % fit.plan.data <= fit.data_rank:
            fit.runner.evaluate(last)  # for nothing but the others


def speaks_for_slice(fit: TrainState) -> bool:
    """Whether this is the first rank of its slice: all of a slice evaluate the same batches."""
    return all(fit.plan.data_rank(rank) != fit.data_rank for rank in range(ranks.rank()))
