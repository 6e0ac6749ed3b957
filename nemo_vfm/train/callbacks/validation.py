"""Measures the loss on held-out batches, as a whole and by noise level, and the metrics that a task has besides."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import torch
from safetensors.torch import load, save

from nemo_vfm.core import log, ranks
from nemo_vfm.core.storage.files import write_json
from nemo_vfm.core.types.batch import Batch
from nemo_vfm.core.types.task import (
    Contribution,
    HasValidationMetrics,
    ModelInputs,
    RanksGroups,
    ReportsPerplexity,
    Task,
)
from nemo_vfm.core.types.training_data import HasTimeWindows, TrainingData
from nemo_vfm.data.shards.shard_folder import warn_that_none_is_held_out
from nemo_vfm.parallel.ranks.process_group import everyone_says, everyone_sends
from nemo_vfm.train.state.train_state import TrainState
from nemo_vfm.train.state.validation_batches import evaluated, speaks_for_slice

if TYPE_CHECKING:
    from nemo_vfm.metrics.ranking import GroupedScores

#: loss, weight and noise of each sample of a batch
Measured = dict[str, list[float]]
#: Contributions that are kept apart until they are merged.
_APART = 64


class Validate:
    """Measures the loss on the held-out batches with fixed noise, so that curves of two runs can be compared.

    Args:
        every_steps: optimizer steps between measurements; there is always one at the end.
        noise_edges: borders of the noise bins; a loss of diffusion is mostly a matter of how much noise there was.
        window: `next` measures, whenever a window of time is trained, the next one, before that is trained on, in place
            of held-out batches every N steps; the data must come in windows of time. Samples that share a batch
            with the last ones of the window before are left out.
        group: a feature, such as the user, or `session`: the samples of each are ranked among each other, and gauc,
            weighted_gauc, mrr, ndcg_K and recall_K are means over the groups. Every rank holds 20 bytes a held-out
            sample and label. None measures none.
        top_k: each K of these.
    """

    def __init__(
        self, *, every_steps: int = 1000, noise_edges: Sequence[float] = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0),
        window: Literal["next"] | None = None, group: str | None = None, top_k: Sequence[int] = (10,),
    ) -> None:  # fmt: skip
        if every_steps < 1 or list(noise_edges) != sorted(noise_edges) or len(noise_edges) < 2:
            raise ValueError(
                f"every_steps ({every_steps}) must be at least 1, noise_edges ({noise_edges}) must increase"
            )
        if not all(k >= 1 for k in top_k):
            raise ValueError(f"top_k counts the first samples of a ranking, 1 or more, got {list(top_k)}")
        self.every_steps, self.noise_edges, self.window = every_steps, tuple(noise_edges), window
        self.group, self.top_k = group, tuple(top_k)

    def require(self, data: TrainingData, task: Task) -> None:
        """Refuse data without the windows, and a task without the groups, that are to be measured.

        Raises:
            ValueError: it has none.
        """
        if self.group and not isinstance(task, RanksGroups):
            raise ValueError(f"loop.validation.group={self.group} ranks samples, but {type(task).__name__} scores none")
        if self.window and not (isinstance(data, HasTimeWindows) and data.has_time_windows()):
            raise ValueError(
                f"loop.validation.window={self.window} measures windows of time, but {type(data).__name__} has none; a "
                "feature table has them with data.order=time and data.time_window"
            )

    def on_step(self, fit: TrainState) -> None:
        """Measure where due, with the averaged weights if there are any."""
        if (batches := self._due(fit)) is None:
            return
        found, counted, grouped = self._of_this_rank(fit, batches)
        # Every rank's batches in the order of the data, so that the sum is that of one device.
        everyone = {int(n): batch for text in everyone_says(json.dumps(found)) for n, batch in json.loads(text).items()}
        measured: list[Measured] = [everyone[number] for number in sorted(everyone)]
        if not measured:
            if self.window is None:
                warn_that_none_is_held_out()
            return
        losses, weights = (torch.tensor([x for batch in measured for x in batch[name]]) for name in ("loss", "weight"))
        fit.metrics["val_loss"] = _mean(losses, weights)
        if isinstance(fit.task, ReportsPerplexity):
            named = fit.task.named(fit.metrics["val_loss"])
            fit.metrics |= {f"val_{name}": value for name, value in named.items()}
        if all("noise" in batch for batch in measured):
            noise = torch.tensor([x for batch in measured for x in batch["noise"]])
            fit.metrics |= self._by_noise(losses, weights, noise)
        if isinstance(fit.task, HasValidationMetrics):
            _add_metrics(fit, fit.task, counted, self._of_groups(fit, grouped) if self.group else {})

    def _due(self, fit: TrainState) -> Iterable[Batch] | None:
        """What is measured after this step; None where nothing is."""
        if self.window is None:
            return fit.data.val_dataloader() if fit.due(self.every_steps) else None
        data, last = fit.data, fit.step - 1
        assert isinstance(data, HasTimeWindows), "see require"
        ends = fit.finished or fit.ended_early or data.ends_time_window(last)
        return data.rest_of_time_window(last) if ends else None

    def _of_this_rank(
        self, fit: TrainState, batches: Iterable[Batch]
    ) -> tuple[dict[int, Measured], list[Contribution], dict[str, list["GroupedScores"]]]:
        """What the batches of this rank's slice measure, by number; what they count for the task's metrics; groups."""
        found: dict[int, Measured] = {}
        counted: list[Contribution] = []
        grouped = dict[str, list["GroupedScores"]]()
        for number, losses_B, prepared in evaluated(fit, batches):
            if not isinstance(fit.task, HasValidationMetrics):
                found[number] = _measured(losses_B, prepared)
                continue
            weight_B = prepared.weight_B.double()  # a batch counts as one sample: logs are held out by the million
            found[number] = {"loss": [_mean(losses_B.double(), weight_B)], "weight": [float(weight_B.sum())]}
            counted.append(fit.task.contribution(prepared))
            if len(counted) == _APART:
                counted = [fit.task.merged(counted)]
            if self.group and isinstance(fit.task, RanksGroups):
                for suffix, columns in fit.task.grouped(prepared, self.group).items():
                    from nemo_vfm.metrics.ranking import GroupedScores

                    one = GroupedScores.of(**{f"{name}_N": column for name, column in columns.items()})
                    grouped.setdefault(suffix, []).append(one)
        return found, counted, grouped

    def _of_groups(self, fit: TrainState, grouped: Mapping[str, Sequence["GroupedScores"]]) -> dict[str, float]:
        """Measures of all ranks' groups, of which each may be spread over them."""
        from nemo_vfm.metrics.ranking import GROUPED_COLUMNS, GroupedScores

        own = {f"{suffix}/{name}": column for suffix, parts in grouped.items()
               for name, column in GroupedScores.merged(parts).columns().items()}  # fmt: skip
        sent = everyone_sends(save(own) if own and speaks_for_slice(fit) else b"")
        everyone = [load(bytes(data)) for data in sent if data]
        found: dict[str, float] = {}
        for suffix in sorted({key.partition("/")[0] for tensors in everyone for key in tensors}):
            parts = [{n: one[f"{suffix}/{n}"] for n in GROUPED_COLUMNS} for one in everyone]
            measures = GroupedScores.merged([GroupedScores(**part) for part in parts]).measures(self.top_k)
            found |= {f"{name}{suffix}": value for name, value in measures.items()}
        return found

    def _by_noise(self, losses: torch.Tensor, weights: torch.Tensor, noise: torch.Tensor) -> dict[str, float]:
        bins = torch.bucketize(noise, torch.tensor(self.noise_edges[1:-1]))
        spans = list(zip(self.noise_edges, self.noise_edges[1:], strict=False))
        inside = {f"val_loss/noise_{low:g}-{high:g}": bins == i for i, (low, high) in enumerate(spans)}
        return {
            name: _mean(losses[which], weights[which]) for name, which in inside.items() if weights[which].sum() > 0
        }


def _add_metrics(
    fit: TrainState, task: HasValidationMetrics, counted: Sequence[Contribution], of_groups: Mapping[str, float]
) -> None:  # fmt: skip
    """Those of all ranks' samples, and validation.json."""
    own = save(dict(task.merged(counted))) if counted and speaks_for_slice(fit) else b""
    everyone = [load(bytes(data)) for data in everyone_sends(own) if data]
    metrics, details = task.validation_metrics(task.merged(everyone))
    metrics = {**metrics, **{name: value for name, value in of_groups.items() if not name.startswith("groups")}}
    named = {"groups": {name: value for name, value in of_groups.items() if math.isfinite(value)}} if of_groups else {}
    if undefined := [name for name, value in metrics.items() if not math.isfinite(value)]:
        log.warn_once(
            f"{', '.join(undefined)} of the held-out samples cannot be computed: all have the same label, or a "
            "prediction is not a number"
        )
    fit.metrics |= {f"val_{name}": value for name, value in metrics.items() if math.isfinite(value)}
    if ranks.is_first():
        write_json(fit.run.folder / "validation.json", {"step": fit.step, **details, **named})


def _measured(losses_B: torch.Tensor, prepared: ModelInputs) -> Measured:
    noise = {"noise": prepared.tags["noise"].tolist()} if "noise" in prepared.tags else {}
    return {"loss": losses_B.tolist(), "weight": prepared.weight_B.tolist(), **noise}


def _mean(losses: torch.Tensor, weights: torch.Tensor) -> float:
    return float((losses * weights).sum() / weights.sum().clamp_min(1e-12))
