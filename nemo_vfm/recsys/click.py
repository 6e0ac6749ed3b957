# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Defines the task of a ranking model: the probability of a click, or of several labels, for each sample of a log.

Shape letters: B samples, L labels.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.types.batch import Batch
from nemo_vfm.core.types.task import ModelInputs
from nemo_vfm.sparse.feature_batch import FeatureBatch


class Click:
    """Binary cross-entropy with logits, one logit a label.

    A sample's loss is sum over its observed labels of w * (max(z, 0) - z y + log(1 + exp(-|z|))), with the label y in
    0..1, its logit z and the label's weight w. A label that is NaN was not observed and has no loss; a sample without
    any observed label counts for nothing in the mean.

    Args:
        labels: the labels of the batch to learn, in the order of the model's logits, and the weight of each one's loss.

    Raises:
        ValueError: there is no label, or a weight is not above zero.
    """

    def __init__(self, *, labels: Mapping[str, float]) -> None:
        if not labels or not all(0 < weight < math.inf for weight in labels.values()):
            raise ValueError(f"labels must name at least one label, each with a weight above zero, got {dict(labels)}")
        self.labels = dict(labels)

    def prepare(self, batch: Batch, *, seed: int, training: bool) -> ModelInputs:
        """The batch as it is: `model(batch=batch)`; nothing is drawn.

        Raises:
            UserError: the batch has no features, or lacks a label.
            DataError: a label is outside of 0..1.
        """
        if not isinstance(batch, FeatureBatch):
            raise UserError(
                f"Click learns from features and labels of a log, and this data gives {type(batch).__name__}; give "
                "data such as nemo_vfm.recsys.feature_table_data.FeatureTableData"
            )
        if lacking := [name for name in self.labels if name not in batch.labels]:
            raise UserError(
                f"the data has no label {', '.join(map(repr, lacking))}; it has "
                f"{', '.join(map(repr, batch.labels)) or 'none'}. Name those to learn in task.labels"
            )
        targets = {name: batch.labels[name].float() for name in self.labels}
        label_BL = torch.stack([*targets.values()], 1)
        self._require_in_range(label_BL, batch)
        observed_B = ~label_BL.isnan().all(1)
        return ModelInputs({"batch": batch}, targets, batch.weight_B * observed_B)

    def _require_in_range(self, label_BL: Tensor, batch: FeatureBatch) -> None:
        """One look at all labels: on a GPU each look waits for the device."""
        wrong_BL = ((label_BL < 0) | (label_BL > 1)) & (batch.weight_B[:, None] > 0)
        if wrong_BL.any():
            row, column = wrong_BL.nonzero()[0].tolist()
            raise DataError(
                f"batch {batch.index}: the label {[*self.labels][column]!r} of sample {batch.keys[row]} is "
                f"{float(label_BL[row, column]):g}, and labels are 0 to 1, or NaN where not observed"
            )

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
