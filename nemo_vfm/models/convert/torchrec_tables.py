"""Exchanges rows and optimizer state of embedding tables with TorchRec and FBGEMM, by the names of their tensors.

An `EmbeddingBagCollection` names rows `embedding_bags.TABLE.weight`, an `EmbeddingCollection` names them
`embeddings.TABLE.weight`. FBGEMM's AdaGrad keeps `TABLE.momentum1`, the same sum of squares as here: one number a row
(EXACT_ROWWISE_ADAGRAD) or one a weight (EXACT_ADAGRAD). TorchRec is not imported.
"""

from collections.abc import Mapping
from typing import Literal

from torch import Tensor

from nemo_vfm.core.errors import DataError
from nemo_vfm.sparse.tables.fused_tables import FusedTables
from nemo_vfm.sparse.tables.row_optimizer import RowAdaGrad, RowSgd, RowWiseAdaGrad

Collection = Literal["embedding_bags", "embeddings"]


def weights_to_torchrec(tables: FusedTables, collection: Collection = "embedding_bags") -> dict[str, Tensor]:
    """The rows under TorchRec's names, as views: what `load_state_dict` of the collection takes."""
    state = tables.state()
    return {f"{collection}.{name}.weight": state[f"{name}.weight"] for name in tables.tables}


def optimizer_to_torchrec(tables: FusedTables) -> dict[str, Tensor]:
    """AdaGrad's sums under FBGEMM's names, as views; nothing for SGD, which has no state."""
    _require_adagrad(tables)
    state = tables.optimizer_state()
    return {f"{name}.momentum1": state[f"{name}.sum"] for name in tables.tables if f"{name}.sum" in state}


def load_torchrec(
    tables: FusedTables, weights: Mapping[str, Tensor], optimizer: Mapping[str, Tensor] | None = None
) -> None:
    """Take over rows, and optimizer state where it is given.

    Args:
        weights: a state dict that has the collection's, also one of a whole model, with more in front of the names.
        optimizer: of each table its `momentum1`, (rows,) or (rows, 1) row-wise, with names as free in front. None keeps
            the sums as they are, zeros in new tables.
    """
    state = tables.state()
    for name in tables.tables:
        endings = [f"{collection}.{name}.weight" for collection in ("embedding_bags", "embeddings")]
        state[f"{name}.weight"] = _find_tensor(weights, endings)
    if optimizer is not None:
        _require_adagrad(tables)
        for key in [key for key in state if key.endswith(".sum")]:
            sums = _find_tensor(optimizer, [f"{key.removesuffix('.sum')}.momentum1"])
            state[key] = sums.view(state[key].shape) if sums.numel() == state[key].numel() else sums
    tables.load(state)


def _find_tensor(given: Mapping[str, Tensor], endings: list[str]) -> Tensor:
    keys = [key for key in given if any(f".{key}".endswith(f".{ending}") for ending in endings)]
    if len(keys) != 1:
        what = f"is in it {len(keys)} times: {', '.join(keys)}" if keys else "is not in it"
        raise DataError(f"{endings[0]} {what}. Give the state of tables of the same names.")
    return given[keys[0]]


def _require_adagrad(tables: FusedTables) -> None:
    if not isinstance(tables.optimizer, RowAdaGrad | RowWiseAdaGrad | RowSgd):
        raise ValueError(
            f"the state of {type(tables.optimizer).__name__} has no counterpart there; use RowAdaGrad or RowWiseAdaGrad"
        )
