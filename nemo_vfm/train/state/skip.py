"""Skips named samples and steps of a training; everything else comes as before."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from nemo_vfm.core import log
from nemo_vfm.core.types.batch import Batch
from nemo_vfm.core.types.json_value import Json


@dataclass(frozen=True, slots=True)
class Skip:
    """What a training leaves out. Nothing moves up: all other samples come at the same steps, with the same noise.

    Args:
        samples: keys, as `nemo-vfm explain RUN@STEP` shows them. Such a sample keeps its place in every batch that it
            is in, with loss weight 0: the mean is over the others.
        steps: counted from 1, as in metrics.jsonl. Such a step is counted, and nothing else: weights, their running
            average and the optimizer's state stay as they were.
    """

    samples: Sequence[str] = ()
    steps: Sequence[int] = ()

    def __post_init__(self) -> None:
        if wrong := [step for step in self.steps if type(step) is not int or step < 1]:
            raise ValueError(f"skip.steps are counted from 1, got {wrong[0]!r}")
        if isinstance(self.samples, str):
            raise ValueError(f"skip.samples must be a list of keys, such as [{self.samples}]")

    def zero_weights(self, batch: Batch) -> Batch:
        """The batch with weight 0 where a sample is left out."""
        found = [place for place, key in enumerate(batch.keys) if key in self.samples]
        if not found:
            return batch
        weight = batch.weight_B.clone()
        weight[found] = 0
        return replace(batch, weight_B=weight)

    def state(self) -> Json:
        """What a checkpoint remembers of it."""
        return {"samples": sorted(self.samples), "steps": sorted(self.steps)}

    def say_what_differs(self, step: int, before: Json) -> None:
        """Warn where a resumed run leaves out other samples or steps than its `step` steps before.

        Samples that were or are left out may have come in any step before.
        """
        before = before if isinstance(before, dict) else {}
        steps = sorted(one for one in set(before.get("steps", ())) ^ set(self.steps) if one <= step)
        samples = sorted(set(before.get("samples", ())) ^ set(self.samples))
        found = [f"step {', '.join(map(str, steps[:4]))}"] if steps else []
        found += [f"sample {', '.join(samples[:4])}"] if samples and step else []
        if found:
            log.warn(f"skip differs from what this run began with ({' and '.join(found)}), and {step} steps are "
                     f"done: a run with this skip from the start would have different weights")  # fmt: skip


NOTHING = Skip()
