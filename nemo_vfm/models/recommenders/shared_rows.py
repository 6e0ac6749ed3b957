"""Refuses to compute on unique rows what would then differ from computing on every sample, unless allowed by name."""

from collections.abc import Mapping, Sequence
from typing import Literal, get_args

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from nemo_vfm.models.recommenders.feature_vectors import Stage
from nemo_vfm.models.recommenders.sample_dropout import SampleDropout

#: What duplicates would share although it is each sample's own.
Shared = Literal["dropout", "batch_norm", "foreign_features"]


def require_shareable(part: nn.Module, deduplicated: Mapping[str, Stage], allow: Sequence[Shared]) -> None:
    """Check the part of a model that attends, if a group is attended on its unique rows.

    Dropout would drop alike in all samples of a row, and batch norm would count a row once that many samples have.

    Raises:
        ValueError: the part has one of these and `allow` does not name it, or `allow` has an unknown name.
    """
    if unknown := [name for name in allow if name not in get_args(Shared)]:
        raise ValueError(f"allow names {unknown[0]!r}; it can be {', '.join(get_args(Shared))}")
    attended = [group for group, stage in deduplicated.items() if stage == "attend"]
    for name, what in {"dropout": _drops, "batch_norm": _normalizes_batches}.items() if attended else ():
        if name not in allow and any(map(what, part.modules())):
            raise ValueError(
                f"deduplicated.{attended[0]} is 'attend', but the attention has {name}, which samples of one row would "
                f"share: the result differs from that without deduplication. Remove it, use 'pool', or allow: [{name}]"
            )


def _drops(module: nn.Module) -> bool:
    return isinstance(module, nn.modules.dropout._DropoutNd | nn.AlphaDropout | SampleDropout) and module.p > 0


def _normalizes_batches(module: nn.Module) -> bool:
    return isinstance(module, _BatchNorm)
