"""Defines knowledge distillation: a language model learns the next token as a frozen teacher predicts it.

Shape letters: B batch, S tokens, V vocabulary, N tokens of a run.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from nemo_vfm.core.bounds import require_between
from nemo_vfm.core.types.batch import Batch
from nemo_vfm.core.types.sample_batches import IGNORED
from nemo_vfm.core.types.task import ModelInputs
from nemo_vfm.language.next_token_task import NextToken

_RUN = 1024  # tokens at a time: a copy of their scores in fp32 is 131 MB for 32,000 words


class Distil(NextToken):
    """The task of a student, a language model that learns from `weights.frozen.teacher`, one of the same vocabulary.

    The loss of a labelled token is (1 - weight) * cross-entropy + weight * T^2 * KL(teacher || student), the divergence
    that of softmax(scores / T) (Hinton, 1503.02531, section 2; Minitron, 2407.14679, has weight 1). Each counts alike,
    as for `NextToken`. Validation measures the cross-entropy alone, which compares with other trainings.

    Args:
        weight: of the divergence, in [0, 1]; at 1 labels only say which tokens count.
        temperature: T; above 1, unlikely tokens count for more.
    """

    def __init__(self, *, weight: float = 1.0, temperature: float = 1.0) -> None:
        require_between(0, 1, weight=weight)
        require_between(0.01, 100, temperature=temperature)
        self.weight, self.temperature = weight, temperature
        self.models: Mapping[str, Callable[..., Tensor]] = {}

    def models_objection(self, model: nn.Module, frozen: Mapping[str, nn.Module]) -> str:
        """See `ReadsModels`."""
        if set(frozen) != {"teacher"}:
            return f"Distil reads one frozen model, teacher, but there is {', '.join(frozen) or 'none'}; give just that"
        if getattr(getattr(getattr(model, "sizes", None), "experts", None), "balance", 0):
            return "the loss of Distil does not balance experts; set model.experts.balance=0"
        own, theirs = (getattr(one, "vocab", None) for one in (model, frozen["teacher"]))
        return "" if own == theirs else (f"the model has a vocabulary of {own} and the teacher of {theirs}, and each "
                                         f"token must be in both; give model.vocab={theirs}")  # fmt: skip

    def read_models(self, models: Mapping[str, Callable[..., Tensor]]) -> None:
        """See `ReadsModels`."""
        self.models = models

    def prepare(self, batch: Batch, *, seed: int, training: bool) -> ModelInputs:
        """In training labels are targets, so that models give their scores."""
        prepared = super().prepare(batch, seed=seed, training=training)
        if training:
            prepared.inputs = inputs = prepared.tensors()
            prepared.targets["labels_BS"] = inputs.pop("labels_BS")
        return prepared

    def losses(self, output: Tensor, prepared: ModelInputs) -> Tensor:
        """The mean over each row's labelled tokens, (B,), in natural units; 0 for a row without any."""
        if not prepared.targets:
            return super().losses(output, prepared)
        labels_BS = prepared.targets["labels_BS"]
        theirs_BSV = self.models["teacher"](**prepared.inputs)
        flat = (output.flatten(0, 1), theirs_BSV.flatten(0, 1), labels_BS.flatten())
        runs = zip(*(torch.split(one, _RUN) for one in flat), strict=True)
        # Backward computes each run again: else it would keep several fp32 copies of all scores.
        each = [checkpoint(self._of_tokens, *run, use_reentrant=False, preserve_rng_state=False) for run in runs]
        return torch.cat(each).view(labels_BS.shape).sum(1) / (labels_BS != IGNORED).sum(1).clamp_min(1)

    def _of_tokens(self, own_NV: Tensor, theirs_NV: Tensor, labels_N: Tensor) -> Tensor:
        """(N,), in the dtype of the student's scores; 0 for tokens without a label."""
        own, theirs = ((scores / self.temperature).log_softmax(1) for scores in (own_NV, theirs_NV.to(own_NV.dtype)))
        divergence_N = F.kl_div(own, theirs, reduction="none", log_target=True).sum(1)
        entropy_N = F.cross_entropy(own_NV, labels_N, ignore_index=IGNORED, reduction="none")
        losses_N = self.weight * self.temperature**2 * divergence_N + (1 - self.weight) * entropy_N
        return losses_N * (labels_N != IGNORED)
