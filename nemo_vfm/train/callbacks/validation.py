"""Measures the loss on held-out batches, as a whole and by noise level, and the metrics that a task has besides."""

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

import torch

from nemo_vfm.core.types.task import HasValidationMetrics, RanksGroups, ReportsPerplexity, Task
from nemo_vfm.core.types.training_data import HasTimeWindows, TrainingData

if TYPE_CHECKING:
    from nemo_vfm.train.state.train_state import TrainState


class Validate:
    """Measures the loss on the held-out batches with fixed noise, so that curves of two runs can be compared.

    Args:
        every_steps: optimizer steps between measurements; there is always one at the end.
        noise_edges: borders of the noise bins, since a diffusion loss depends mostly on the noise level. The outer bins
            also take everything beyond them.
        window: `next` is progressive validation: when a time window has been trained on, measure the next one before
            training on it, instead of held-out batches every N steps. The data must come in windows of time. Samples
            sharing a batch with the previous window are left out.
        group: a feature, such as the user, or `session`: the samples of each are ranked among each other, and gauc,
            weighted_gauc, mrr, ndcg_K and recall_K are means over the groups. Every rank holds 20 bytes a held-out
            sample and label. None: no group metrics.
        top_k: values of K for ndcg_K and recall_K.
    """

    def __init__(
        self, *, every_steps: int = 1000, noise_edges: Sequence[float] = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0),
        window: Literal["next"] | None = None, group: str | None = None, top_k: Sequence[int] = (10,),
    ) -> None:  # fmt: skip
        if every_steps < 1:
            raise ValueError(f"every_steps must be at least 1, got {every_steps}")
        if len(noise_edges) < 2:
            raise ValueError(f"noise_edges must have at least two borders, such as [0, 1], got {list(noise_edges)}")
        if not all(low < high for low, high in pairwise(noise_edges)):
            raise ValueError(f"noise_edges must increase from each to the next, got {list(noise_edges)}")
        if not all(k >= 1 for k in top_k):
            raise ValueError(f"top_k counts the first samples of a ranking, 1 or more, got {list(top_k)}")
        self.every_steps, self.noise_edges, self.window = every_steps, tuple(noise_edges), window
        self.group, self.top_k = group, tuple(top_k)

    def require(self, data: TrainingData, task: Task) -> None:
        """Refuse data without the windows, and a task without the groups, that are to be measured, by a ValueError."""
        if self.group and not isinstance(task, RanksGroups):
            raise ValueError(f"loop.validation.group={self.group} ranks samples, but {type(task).__name__} scores none")
        if self.window and not (isinstance(data, HasTimeWindows) and data.has_time_windows()):
            raise ValueError(f"loop.validation.window={self.window} measures windows of time, but "
                             f"{type(data).__name__} has none; a feature table has them with data.order=time and "
                             f"data.time_window")  # fmt: skip

    def on_step(self, fit: "TrainState") -> None:
        """Measure where due, with the averaged weights if there are any."""
        data, last = fit.data, fit.step - 1
        if self.window is None:
            if not fit.is_due(self.every_steps):
                return
            batches = data.val_dataloader()
        else:
            assert isinstance(data, HasTimeWindows), "see require"
            if not (fit.finished or fit.ended_early or data.ends_time_window(last)):
                return
            batches = data.rest_of_time_window(last)
        from nemo_vfm.data.shards.shard_folder import warn_that_none_is_held_out
        from nemo_vfm.train.state import validation_batches

        measured, counted, grouped = validation_batches.measure(fit, batches, self.group)
        if not measured:
            if self.window is None:
                warn_that_none_is_held_out()
            return
        losses, weights = (torch.tensor([x for batch in measured for x in batch[name]]) for name in ("loss", "weight"))
        fit.metrics["val_loss"] = validation_batches.mean(losses, weights)
        if isinstance(fit.task, ReportsPerplexity):
            named = fit.task.loss_metrics(fit.metrics["val_loss"])
            fit.metrics |= {f"val_{name}": value for name, value in named.items()}
        if all("noise" in batch for batch in measured):
            noise = torch.tensor([x for batch in measured for x in batch["noise"]])
            fit.metrics |= self._by_noise(losses, weights, noise)
        if isinstance(fit.task, HasValidationMetrics):
            of_groups = validation_batches.measures_of_groups(fit, grouped, self.top_k) if self.group else {}
            validation_batches.add_metrics(fit, fit.task, counted, of_groups)

    def _by_noise(self, losses: torch.Tensor, weights: torch.Tensor, noise: torch.Tensor) -> dict[str, float]:
        from nemo_vfm.train.state.validation_batches import mean

        bins = torch.bucketize(noise, torch.tensor(self.noise_edges[1:-1]))
        spans = enumerate(pairwise(self.noise_edges))
        inside = {f"val_loss/noise_{low:g}-{high:g}": bins == i for i, (low, high) in spans}
        return {name: mean(losses[which], weights[which]) for name, which in inside.items() if weights[which].sum() > 0}
