"""Defines next-token prediction: a language model's inputs from a batch of tokens, and the loss of each row.

Shape letters: B batch, S tokens, N packed documents.
"""

import itertools
import math

import torch
from torch import Tensor

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.types.batch import Batch
from nemo_vfm.core.types.sample_batches import IGNORED, TokenBatch
from nemo_vfm.core.types.task import ModelInputs


class NextToken:
    """The task of a causal language model, whose forward gives the loss of each token.

    The mean over a global batch counts each token alike: sum over all labelled tokens of -log p(label | tokens before
    it), divided by their number. A row's weight is therefore its own times its number of labels. exp of that mean is
    the perplexity.
    """

    def prepare(self, batch: Batch, *, seed: int, training: bool) -> ModelInputs:
        """Tokens and labels as they are; nothing is drawn."""
        if not isinstance(batch, TokenBatch):
            raise UserError("a language model learns from tokens, but this data yields videos; use data such as "
                            "nemo_vfm.data.tokens.token_data.TokenData")  # fmt: skip
        inputs = {"tokens_BS": batch.tokens_BS, "labels_BS": batch.labels_BS, "loss_weight_B": batch.weight_B}
        if batch.documents:
            inputs["lengths_N"] = torch.tensor(list(itertools.chain(*batch.documents)))  # read on the host
        return ModelInputs(inputs, {}, batch.weight_B * _count_targets(batch.labels_BS))

    def losses(self, output: Tensor, prepared: ModelInputs) -> Tensor:
        """The mean over each row's labelled tokens, (B,), in natural units; 0 for a row without any."""
        return output.sum(1) / _count_targets(prepared.tensors()["labels_BS"]).clamp_min(1)

    def loss_metrics(self, loss: float) -> dict[str, float]:
        """See `ReportsPerplexity`: the perplexity, exp of the loss."""
        return {"perplexity": math.exp(min(loss, 700.0))}  # above, no float is large enough


def _count_targets(labels_BS: Tensor) -> Tensor:
    """(B,), how many tokens of each row have a loss."""
    return (labels_BS != IGNORED).sum(1).float()
