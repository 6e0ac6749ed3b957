"""Evaluates the held-out batches, each on the ranks of one slice, and brings the figures of all ranks together."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING

from safetensors.torch import load, save
from torch import Tensor

from nemo_vfm.core import log, ranks
from nemo_vfm.core.storage.files import write_json
from nemo_vfm.core.types.batch import Batch
from nemo_vfm.core.types.task import Contribution, HasValidationMetrics, ModelInputs, RanksGroups
from nemo_vfm.parallel.ranks.process_group import everyone_says, everyone_sends
from nemo_vfm.train.state.train_state import TrainState

if TYPE_CHECKING:
    from nemo_vfm.metrics.ranking import GroupedScores

#: loss, weight and noise of each sample of a batch
Measured = dict[str, list[float]]
#: Contributions that are kept apart until they are merged.
_APART = 64


def evaluate_batches(
    fit: TrainState, batches: Iterable[Batch] | None = None
) -> Iterator[tuple[int, Tensor, ModelInputs]]:  # fmt: skip
    """(number, losses_B, inputs) of each batch of this rank's slice, with the averaged weights if there are any.

    Args:
        batches: the same on all ranks; None takes those that are held out.

    Every rank must go to the end: the others may need this rank's part of the weights.
    """
    with fit.ema.apply_to(fit.model) if fit.ema else nullcontext():
        count, last = 0, None
        for count, last in enumerate(fit.data.val_dataloader() if batches is None else batches, 1):
            if (count - 1) % fit.plan.data == fit.data_rank:
                yield count - 1, *fit.runner.evaluate(last)
        if last is not None and 0 < count % fit.plan.data <= fit.data_rank:
            fit.runner.evaluate(last)  # for nothing but the others


def speaks_for_slice(fit: TrainState) -> bool:
    """Whether this is the first rank of its slice: all of a slice evaluate the same batches."""
    return all(fit.plan.data_rank(rank) != fit.data_rank for rank in range(ranks.rank()))


def measure(
    fit: TrainState, batches: Iterable[Batch], group: str | None
) -> tuple[list[Measured], list[Contribution], dict[str, list["GroupedScores"]]]:
    """What each batch measures, of all ranks; what this rank's count for the task's metrics; their groups."""
    found: dict[int, Measured] = {}
    counted: list[Contribution] = []
    grouped = dict[str, list["GroupedScores"]]()
    for number, losses_B, prepared in evaluate_batches(fit, batches):
        if not isinstance(fit.task, HasValidationMetrics):
            noise = {"noise": prepared.tags["noise"].tolist()} if "noise" in prepared.tags else {}
            found[number] = {"loss": losses_B.tolist(), "weight": prepared.weight_B.tolist(), **noise}
            continue
        weight_B = prepared.weight_B.double()  # a batch counts as one sample: logs are held out by the million
        found[number] = {"loss": [mean(losses_B.double(), weight_B)], "weight": [float(weight_B.sum())]}
        counted.append(fit.task.contribution(prepared))
        if len(counted) == _APART:
            counted = [fit.task.merge(counted)]
        if group and isinstance(fit.task, RanksGroups):
            for suffix, columns in fit.task.group_scores(prepared, group).items():
                from nemo_vfm.metrics.ranking import GroupedScores

                one = GroupedScores.of(**{f"{name}_N": column for name, column in columns.items()})
                grouped.setdefault(suffix, []).append(one)
    # Every rank's batches in the order of the data, so that the sum is that of one device.
    everyone = {int(n): batch for text in everyone_says(json.dumps(found)) for n, batch in json.loads(text).items()}
    return [everyone[number] for number in sorted(everyone)], counted, grouped


def measures_of_groups(
    fit: TrainState, grouped: Mapping[str, Sequence["GroupedScores"]], top_k: Sequence[int]
) -> dict[str, float]:  # fmt: skip
    """Measures of all ranks' groups, of which each may be spread over them."""
    from nemo_vfm.metrics.ranking import GROUPED_COLUMNS, GroupedScores

    own = {f"{suffix}/{name}": column for suffix, parts in grouped.items()
           for name, column in GroupedScores.merge(parts).columns().items()}  # fmt: skip
    sent = everyone_sends(save(own) if own and speaks_for_slice(fit) else b"")
    everyone = [load(bytes(data)) for data in sent if data]
    found: dict[str, float] = {}
    for suffix in sorted({key.partition("/")[0] for tensors in everyone for key in tensors}):
        parts = [{n: one[f"{suffix}/{n}"] for n in GROUPED_COLUMNS} for one in everyone]
        measures = GroupedScores.merge([GroupedScores(**part) for part in parts]).measures(top_k)
        found |= {f"{name}{suffix}": value for name, value in measures.items()}
    return found


def add_metrics(
    fit: TrainState, task: HasValidationMetrics, counted: Sequence[Contribution], of_groups: Mapping[str, float]
) -> None:  # fmt: skip
    """Those of all ranks' samples, and validation.json."""
    own = save(dict(task.merge(counted))) if counted and speaks_for_slice(fit) else b""
    everyone = [load(bytes(data)) for data in everyone_sends(own) if data]
    metrics, details = task.validation_metrics(task.merge(everyone))
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


def mean(losses: Tensor, weights: Tensor) -> float:
    """By weight."""
    return float((losses * weights).sum() / weights.sum().clamp_min(1e-12))
