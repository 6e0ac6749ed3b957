"""Defines the task of a ranking model: the probability of a click, or of several labels, for each sample of a log.

Shape letters: B samples, L labels.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.types.batch import Batch
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.core.types.task import Contribution, ModelInputs, ValidationMetrics
from nemo_vfm.metrics.ranking import ScoreCounts, expected_calibration_error
from nemo_vfm.models.recommenders.feature_input import feature_rows
from nemo_vfm.sparse.feature_batch import FeatureBatch


class Click:
    """Binary cross-entropy with logits, one logit a label.

    A sample's loss is sum over its observed labels of w * (max(z, 0) - z y + log(1 + exp(-|z|))), with the label y in
    0..1, its logit z and the label's weight w. A label that is NaN was not observed and has no loss; a sample without
    any observed label counts for nothing in the mean.

    Args:
        labels: the labels of the batch to learn, in the order of the model's logits, and the weight of each one's loss;
            of a list, all weights are 1.
        score_step: logits are rounded to multiples of this to measure the AUC of held-out samples, so that memory stays
            the same however many there are; validation.json says what it can have changed. None keeps every score.

    Raises:
        ValueError: there is no label, a weight is not above zero, or the step is not.
    """

    def __init__(self, *, labels: Mapping[str, float] | Sequence[str], score_step: float | None = 0.001) -> None:
        weights = dict(labels) if isinstance(labels, Mapping) else dict.fromkeys(labels, 1.0)
        if not weights or not all(0 < weight < math.inf for weight in weights.values()):
            raise ValueError(f"labels must name at least one label, each with a weight above zero, got {weights}")
        if score_step is not None and not 0 < score_step <= 1:
            raise ValueError(f"score_step must be above 0 and at most 1, or null to keep every score, got {score_step}")
        self.labels, self.score_step = weights, score_step

    def prepare(self, batch: Batch, *, seed: int, training: bool) -> ModelInputs:
        """The batch as it is: `model(batch=batch)`; nothing is drawn.

        Raises:
            UserError: the batch has no features, or lacks a label.
            DataError: a label is outside of 0..1.
        """
        if not isinstance(batch, FeatureBatch):
            raise UserError(
                f"Click learns from features and labels of a log, but this data yields {type(batch).__name__}; use "
                "data such as nemo_vfm.recsys.feature_table_data.FeatureTableData"
            )
        if lacking := [name for name in self.labels if name not in batch.labels]:
            raise UserError(
                f"the data has no label {', '.join(map(repr, lacking))}; it has "
                f"{', '.join(map(repr, batch.labels)) or 'none'}. Name those to learn in task.labels; a change adds a "
                f"name, and ~task.labels.{lacking[0]} removes one"
            )
        targets = {name: batch.labels[name].float() for name in self.labels}
        label_BL = torch.stack([*targets.values()], 1)
        # One look at all labels: on a GPU each look waits for the device.
        wrong_BL = ((label_BL < 0) | (label_BL > 1)) & (batch.weight_B[:, None] > 0)
        if wrong_BL.any():
            row, column = wrong_BL.nonzero()[0].tolist()
            raise DataError(
                f"batch {batch.index}: the label {[*self.labels][column]!r} of sample {batch.keys[row]} is "
                f"{float(label_BL[row, column]):g}, but labels must be 0 to 1, or NaN where not observed"
            )
        observed_B = ~label_BL.isnan().all(1)
        return ModelInputs({"batch": batch}, targets, batch.weight_B * observed_B)

    def losses(self, output: Tensor, prepared: ModelInputs) -> Tensor:
        """The loss of each sample, (B,), in natural units, from logits (B, L).

        Raises:
            UserError: the model gives another number of logits.
        """
        logit_BL, label_BL = self._logits(output), torch.stack([*prepared.targets.values()], 1)
        # A sample of weight 0 may have any label, and infinity times 0 would be no number.
        loss_BL = binary_cross_entropy_with_logits(logit_BL, label_BL.nan_to_num().clamp(0, 1), reduction="none")
        weight_L = torch.tensor([*self.labels.values()]).to(output.device)
        return (loss_BL.where(~label_BL.isnan(), 0.0) * weight_L).sum(1)

    def predict(self, output: Tensor, prepared: ModelInputs) -> Tensor:
        """See `Predicts`: the probability of each label, (B, 1, L)."""
        return self._logits(output).sigmoid()[:, None]

    def _logits(self, output: Tensor) -> Tensor:
        if output.dim() != 2 or output.shape[1] != len(self.labels):
            raise UserError(
                f"the model gives {tuple(output.shape)}, and {len(self.labels)} logits a sample were expected, for "
                f"{', '.join(self.labels)}; set model.num_labels={len(self.labels)}"
            )
        return output.float()

    def scores(self, output: Tensor, prepared: ModelInputs) -> dict[str, Tensor]:
        """See `ScoresSamples`: the logits of each label."""
        return {_tag(name): logit_B for name, logit_B in zip(self.labels, self._logits(output).unbind(1), strict=True)}

    def columns(self, prepared: ModelInputs) -> dict[str, Tensor]:
        """See `ScoresSamples`: `id`, `session` where known, `weight`, `label`, `score`, and further labels by name.

        A score is the predicted probability. Where there are several labels it is `label_NAME` and `score_NAME`.

        Raises:
            UserError: a label of the batch has the name of another column.
        """
        batch = prepared.inputs["batch"]
        assert isinstance(batch, FeatureBatch)
        own = {"id": batch.ids_B} | ({} if batch.session_B is None else {"session": batch.session_B})
        own["weight"] = batch.weight_B
        for name, label_B in prepared.targets.items():
            own[self.column_name("label", name)] = label_B
            own[self.column_name("score", name)] = prepared.tags[_tag(name)].sigmoid()
        others = {name: label_B for name, label_B in batch.labels.items() if name not in self.labels}
        if taken := sorted(own.keys() & others.keys()):
            raise UserError(
                f"the label {taken[0]!r} of the data has the same name as a column of predictions; rename it"
            )
        return own | others

    def contribution(self, prepared: ModelInputs) -> Contribution:
        """See `HasValidationMetrics`: of each label its samples by their scores."""
        counts = {name: ScoreCounts.of(prepared.tags[_tag(name)], label_B, prepared.weight_B, step=self.score_step)
                  for name, label_B in prepared.targets.items()}  # fmt: skip
        return _tensors(counts)

    def group_scores(self, prepared: ModelInputs, group: str) -> dict[str, dict[str, Tensor]]:
        """See `RanksGroups`: by `session`, or by a feature with at most one id, without which a sample counts nowhere.

        Raises:
            UserError: the batch has no sessions.
            DataError: it has no such feature, or a sample has several ids of it.
        """
        batch = prepared.inputs["batch"]
        assert isinstance(batch, FeatureBatch)
        if group == "session":
            if batch.session_B is None:
                raise UserError("samples should be ranked by session, but these batches have no sessions")
            group_B, has_B = batch.session_B, torch.ones_like(batch.session_B)
        else:
            rows, stored = feature_rows(batch, group)
            if len(several := (rows.lengths_B > 1).nonzero()):
                raise DataError(
                    f"samples should be ranked by {group}, but one has {int(rows.lengths_B[several[0]])} ids of it; "
                    "name a feature with one id a sample"
                )
            has_B = rows.lengths_B == 1
            group_B = torch.zeros_like(rows.lengths_B).masked_scatter_(has_B, rows.values_N)
            if stored is not None:
                inverse_B = batch.groups[stored].inverse_B
                group_B, has_B = group_B[inverse_B], has_B[inverse_B]
        shared = {"group": group_B, "weight": prepared.weight_B * has_B}
        return {
            self.column_name("", name): {**shared, "score": prepared.tags[_tag(name)], "label": label_B}
            for name, label_B in prepared.targets.items()
        }

    def merge(self, parts: Sequence[Contribution]) -> Contribution:
        return _tensors({name: ScoreCounts.merge([_counts(part, name) for part in parts]) for name in self.labels})

    def validation_metrics(self, merged: Contribution) -> ValidationMetrics:
        """See `HasValidationMetrics`: AUC, normalised entropy and calibration of each label; more in the details."""
        counts = {name: _counts(merged, name) for name in self.labels}
        metrics, details = dict[str, float](), dict[str, Json]()
        for name, one in counts.items():
            bins = one.reliability()
            found = {
                "auc": one.auc(), "normalised_entropy": one.normalised_entropy(), "calibration": one.calibration(),
            }  # fmt: skip
            metrics |= {self.column_name(what, name): value for what, value in found.items()}
            found |= {"log_loss": one.log_loss(), "ece": expected_calibration_error(bins)}
            if self.score_step is not None:
                found["auc_error"] = one.auc_error()
            finite = {what: value for what, value in found.items() if math.isfinite(value)}  # else not defined
            details[name] = {"weight": one.weight, **finite, "reliability": [asdict(one) for one in bins]}
        return ValidationMetrics(metrics, {"labels": details})

    def column_name(self, what: str, label: str) -> str:
        """Of a label's column of predictions or its metric: `label`, or with several labels `label_NAME`."""
        return what if len(self.labels) == 1 else f"{what}_{label}"


def _tag(label: str) -> str:
    return f"logit/{label}"


def _tensors(counts: Mapping[str, ScoreCounts]) -> Contribution:
    return {f"{name}/{part}": tensor for name, one in counts.items()
            for part, tensor in (("score", one.score_K), ("sums", one.sums_K4))}  # fmt: skip


def _counts(tensors: Contribution, label: str) -> ScoreCounts:
    return ScoreCounts(tensors[f"{label}/score"], tensors[f"{label}/sums"])
