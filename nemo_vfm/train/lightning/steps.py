"""Counts the steps of a Lightning training, for its lines, curves, checkpoints and progress alike.

A step ends with a batch after which optimizers step. `trainer.global_step` counts each optimizer of such a batch.
"""

import math

from lightning.pytorch import Trainer


def completed_steps(trainer: Trainer) -> int:
    """So many are behind the run."""
    return trainer.fit_loop.epoch_loop._batches_that_stepped


def steps_at_batch_end(trainer: Trainer) -> int:
    """The same at a batch's end, before Lightning counts it."""
    return completed_steps(trainer) + (not trainer.fit_loop._should_accumulate())


def total(trainer: Trainer, reached: int) -> int | None:
    """Of the whole run, of which `reached` are done; None if unknown. `global_step` may count several in a step."""
    batches, epochs, ends = trainer.num_training_batches, trainer.max_epochs, list[int]()
    if epochs is not None and epochs >= 0 and math.isfinite(batches):
        ends.append(math.ceil(batches / trainer.accumulate_grad_batches) * epochs)
    each = trainer.global_step / reached if reached else 1 if len(trainer.optimizers) == 1 else 0
    if trainer.max_steps >= 0 and each:
        ends.append(reached + math.ceil(max(0, trainer.max_steps - trainer.global_step) / each))
    return min(ends, default=None)
