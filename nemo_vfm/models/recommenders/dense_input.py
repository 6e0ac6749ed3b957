"""Takes the dense numbers of a batch: missing ones (NaN) are refused, or become zeros with an indicator each.

Shape letters: B samples, F dense features, X numbers that a model reads.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from nemo_vfm.core.errors import DataError

Missing = Literal["refuse", "indicator"]


def require_dense(dense: int, missing: str) -> None:
    """Check two settings.

    Raises:
        ValueError: the number of dense features is negative, or the treatment is unknown.
    """
    if dense < 0:
        raise ValueError(f"dense must be 0 or more features, got {dense}")
    if missing not in ("refuse", "indicator"):
        raise ValueError(f"missing {missing!r}: use refuse or indicator")


def require_bottom(bottom: Sequence[int], dense: int, width: int, missing: str) -> None:
    """Check the settings of a perceptron over dense numbers whose output stands among the vectors of features.

    Raises:
        ValueError: the last layer is not `width` wide, there are layers without dense features, or see `require_dense`.
    """
    require_dense(dense, missing)
    if not dense and bottom:
        raise ValueError(f"there are no dense features for a bottom perceptron {list(bottom)}; set bottom to []")
    if dense and (not bottom or bottom[-1] != width):
        raise ValueError(
            f"the bottom perceptron {list(bottom)} of {dense} dense features must give a vector of width {width}, "
            "like a table; the last of bottom is width"
        )


def dense_size(dense: int, missing: Missing) -> int:
    """X: F, or twice as many with indicators."""
    return dense * (2 if missing == "indicator" else 1)


def dense_input(dense_BF: Tensor, dense: int, missing: Missing, dtype: torch.dtype) -> Tensor:
    """(B, X): the numbers, and behind them with `indicator` 1 where one is missing, else 0.

    Args:
        dense: F, as the model was made.
        missing: what NaN is; an infinite number passes, and makes the step one that is not finite.

    Raises:
        DataError: there are not F features, or a number is missing and `missing` is `refuse`.
    """
    if dense_BF.shape[1] != dense:
        raise DataError(f"the batch has {dense_BF.shape[1]} dense features, and the model reads {dense} (dense).")
    missing_BF = dense_BF.isnan()
    if missing == "indicator":
        return torch.cat([dense_BF.masked_fill(missing_BF, 0), missing_BF.to(dense_BF.dtype)], dim=1).to(dtype)
    # A program for other hosts cannot ask: there a missing number makes the score one that is none.
    if not torch.compiler.is_exporting() and bool(missing_BF.any()):
        sample, feature = missing_BF.nonzero()[0].tolist()
        raise DataError(
            f"dense feature {feature} of sample {sample} is missing (NaN), one of {int(missing_BF.sum())} in the "
            "batch. Fill them in before, or set the model's missing=indicator."
        )
    return dense_BF.to(dtype)
