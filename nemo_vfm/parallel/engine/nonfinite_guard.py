"""Decides from a step's loss and gradient norm whether to update the weights, equally on every rank."""

import json
import math
from collections.abc import Sequence
from typing import Literal

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.log import warn
from nemo_vfm.core.types.batch import Batch

_MAX_KEYS = 4  # that a sentence names of each rank


class NonFinite:
    """What becomes of a step whose loss or gradient is not a number.

    Args:
        action: stop the run, with the last checkpoint as it is, or skip the update and continue with the next batch.
        max_in_a_row: this many skipped steps in a row stop the run all the same.
    """

    def __init__(self, *, action: Literal["stop", "skip"] = "stop", max_in_a_row: int = 8) -> None:
        if max_in_a_row < 1:
            raise ValueError(f"max_in_a_row must be at least 1, got {max_in_a_row}")
        self.action, self.max_in_a_row = action, max_in_a_row
        self.in_a_row = 0  #: skipped steps so far; a step that is fine begins again at 0

    def may_update(self, loss: float, grad_norm: float, microbatches: Sequence[Batch]) -> bool:
        """Whether to step although the loss of all samples or the norm is not finite; then every rank must ask.

        `loss` is of this rank's own samples, those of `microbatches`. UserError if that stops the run; on every rank,
        with the same words.
        """
        from nemo_vfm.parallel.ranks.process_group import everyone_says

        keys = [key for batch in microbatches for key in batch.keys]
        own = {"loss": str(loss), "norm": str(grad_norm), "keys": keys[:_MAX_KEYS], "more": len(keys)}
        reports = [json.loads(text) for text in everyone_says(json.dumps(own))]
        # The sum and the norm are the same on all ranks: those whose own loss is not finite are to blame, or all.
        bad = [rank for rank, one in enumerate(reports) if not math.isfinite(float(one["loss"]))]
        bad = bad or [*range(len(reports))]
        one = reports[bad[0]]
        more = ", ..." if one["more"] > len(one["keys"]) else ""
        ranks = "" if len(reports) == 1 else f", on rank {', '.join(map(str, bad))} of {len(reports)}"
        where = (
            f"The loss ({one['loss']}) or its gradient norm ({one['norm']}) is not finite at batch "
            f"{microbatches[0].index if microbatches else '?'} (samples {', '.join(one['keys'])}{more}){ranks}"
        )
        self.in_a_row += 1
        if self.action == "stop":
            raise UserError(f"{where}. Lower the learning rate, or look for damaged samples. No weights were changed.")
        if self.in_a_row >= self.max_in_a_row:
            raise UserError(
                f"{where}: {self.in_a_row} in a row; engine.nonfinite.max_in_a_row is {self.max_in_a_row}. "
                f"Lower the learning rate, or restart from an earlier checkpoint. No weights were changed since"
            )
        warn(f"{where}. The step is skipped: no weights were changed ({self.in_a_row} in a row)")
        return False
