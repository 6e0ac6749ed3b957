"""Updates embedding rows by SGD, AdaGrad and row-wise AdaGrad.

An optimizer is given each touched row once a step, with the sum of its gradients. Rows that no sample looked up keep
their values and their state.

Shape letters: U rows, D width.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

WeightDecayMode = Literal["l2", "decoupled"]


class RowOptimizer(Protocol):
    """What tables ask of an optimizer."""

    def state_shapes(self, rows: int, width: int) -> dict[str, tuple[int, ...]]:
        """Name -> shape of each state tensor of a table, fp32, zero at first; its first dimension is rows."""
        ...

    def update(
        self, rows_UD: Tensor, grads_UD: Tensor, state: Mapping[str, Tensor], step: int, lr_factor: float
    ) -> None:
        """Change rows and state in place.

        Args:
            rows_UD: fp32.
            grads_UD: fp32, the gradient of each row; it may be overwritten.
            state: the tensors of `state_shapes` for these rows.
            step: 1 at the first update.
            lr_factor: of a schedule; it multiplies the learning rate.
        """
        ...

    def keeps_rows_without_gradient(self) -> bool:
        """Whether a gradient of zero changes neither row nor state, in any bit."""
        ...


@dataclass(frozen=True)
class RowSgd:
    """w -= lr (G + weight_decay w).

    Args:
        lr: learning rate.
        weight_decay: of the touched rows only.
    """

    lr: float
    weight_decay: float = 0.0

    def state_shapes(self, rows: int, width: int) -> dict[str, tuple[int, ...]]:
        """No state."""
        return {}

    def update(
        self, rows_UD: Tensor, grads_UD: Tensor, state: Mapping[str, Tensor], step: int, lr_factor: float
    ) -> None:
        """See `RowOptimizer`."""
        lr = self.lr * lr_factor
        decay(grads_UD, rows_UD, lr, self.weight_decay, "l2")
        rows_UD.sub_(grads_UD.mul_(lr))

    def keeps_rows_without_gradient(self) -> bool:
        """Without weight decay."""
        return self.weight_decay == 0


@dataclass(frozen=True)
class _AdaGrad:
    """What both forms have alike."""

    lr: float
    eps: float = 1e-8
    weight_decay: float = 0.0
    weight_decay_mode: WeightDecayMode = "l2"

    def __post_init__(self) -> None:
        require_decay_and_eps(self.eps, self.weight_decay_mode)

    def keeps_rows_without_gradient(self) -> bool:
        """Without weight decay."""
        return self.weight_decay == 0


@dataclass(frozen=True)
class RowAdaGrad(_AdaGrad):
    """m += G^2; w -= lr G / (sqrt(m) + eps), element by element (Duchi et al., JMLR 2011).

    Args:
        lr: learning rate.
        eps: above 0.
        weight_decay: of the touched rows only; see `weight_decay_mode`.
        weight_decay_mode: "l2" adds weight_decay w to the gradient before it is squared; "decoupled" multiplies the
            row by 1 - lr weight_decay.
    """

    def state_shapes(self, rows: int, width: int) -> dict[str, tuple[int, ...]]:
        """The sum of squares of each number."""
        return {"sum": (rows, width)}

    def update(
        self, rows_UD: Tensor, grads_UD: Tensor, state: Mapping[str, Tensor], step: int, lr_factor: float
    ) -> None:
        """See `RowOptimizer`."""
        lr = self.lr * lr_factor
        decay(grads_UD, rows_UD, lr, self.weight_decay, self.weight_decay_mode)
        state["sum"].addcmul_(grads_UD, grads_UD)
        rows_UD.sub_(grads_UD.mul_(lr).div_(state["sum"].sqrt().add_(self.eps)))


@dataclass(frozen=True)
class RowWiseAdaGrad(_AdaGrad):
    """m_r += mean_k G_rk^2; w_r -= lr / (sqrt(m_r) + eps) G_r: one number of state a row, as FBGEMM's exact version.

    Args:
        lr: learning rate.
        eps: above 0.
        weight_decay: of the touched rows only; see `weight_decay_mode`.
        weight_decay_mode: "l2" adds weight_decay w to the gradient before it is squared; "decoupled" multiplies the
            row by 1 - lr weight_decay.
    """

    def state_shapes(self, rows: int, width: int) -> dict[str, tuple[int, ...]]:
        """The sum of mean squares of each row."""
        return {"sum": (rows,)}

    def update(
        self, rows_UD: Tensor, grads_UD: Tensor, state: Mapping[str, Tensor], step: int, lr_factor: float
    ) -> None:
        """See `RowOptimizer`."""
        lr = self.lr * lr_factor
        decay(grads_UD, rows_UD, lr, self.weight_decay, self.weight_decay_mode)
        norms_U = torch.linalg.vector_norm(grads_UD, dim=1)
        sum_U = state["sum"].add_(norms_U.square_(), alpha=1 / grads_UD.shape[1])
        factors_U = sum_U.sqrt().add_(self.eps).reciprocal_().mul_(lr)
        rows_UD.sub_(grads_UD.mul_(factors_U[:, None]))


def decay(grads_UD: Tensor, rows_UD: Tensor, lr: float, weight_decay: float, mode: WeightDecayMode) -> None:
    """Apply weight decay before a step: to the gradient ("l2") or to the row ("decoupled"), in place."""
    if mode == "l2" and weight_decay:  # the gradient of weight_decay |w|^2 / 2
        grads_UD.add_(rows_UD, alpha=weight_decay)
    elif weight_decay:
        rows_UD.mul_(1 - lr * weight_decay)


def require_decay_and_eps(eps: float, mode: str) -> None:
    """Check two settings."""
    if not eps > 0:
        raise ValueError(f"eps {eps} must be above 0, or a gradient of zero divides zero by zero")
    if mode not in ("l2", "decoupled"):
        raise ValueError(f"weight_decay_mode {mode!r}: use l2 or decoupled")
