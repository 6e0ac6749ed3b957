"""Updates embedding rows by Adam and LAMB; moments of rows that no sample looked up rest.

Shape letters: U rows, D width.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from nemo_vfm.sparse.tables.row_optimizer import WeightDecayMode, decay, require_decay_and_eps


class _Moments:
    """What both keep: the averages of each number's gradient and of its square, corrected for bias."""

    betas: tuple[float, float]
    eps: float
    weight_decay_mode: WeightDecayMode = "decoupled"

    def __post_init__(self) -> None:
        require_decay_and_eps(self.eps, self.weight_decay_mode)

    def state_shapes(self, rows: int, width: int) -> dict[str, tuple[int, ...]]:
        """Both moments of each number."""
        return {"exp_avg": (rows, width), "exp_avg_sq": (rows, width)}

    def keeps_rows_without_gradient(self) -> bool:
        """Never: moments move a row after its gradient has gone."""
        return False

    def direction(self, grads_UD: Tensor, state: Mapping[str, Tensor], step: int) -> Tensor:
        """Move both moments in place; m' / (sqrt(v') + eps)."""
        first, second = self.betas
        m_UD = state["exp_avg"].mul_(first).add_(grads_UD, alpha=1 - first)
        v_UD = state["exp_avg_sq"].mul_(second).addcmul_(grads_UD, grads_UD, value=1 - second)
        root_UD = (v_UD / (1 - second**step)).sqrt_().add_(self.eps)
        return (m_UD / (1 - first**step)).div_(root_UD)


@dataclass(frozen=True)
class RowAdam(_Moments):
    """Adam (Kingma and Ba, 2014, algorithm 1) over touched rows, corrected for bias by the step of the whole run.

    m = b1 m + (1 - b1) G;  v = b2 v + (1 - b2) G^2;  w -= lr m' / (sqrt(v') + eps), m' = m / (1 - b1^t).

    Args:
        lr: learning rate.
        betas: b1 and b2.
        eps: above 0.
        weight_decay: of the touched rows only; see `weight_decay_mode`.
        weight_decay_mode: "l2" adds weight_decay w to the gradient; "decoupled" multiplies the row by
            1 - lr weight_decay (AdamW).
    """

    lr: float
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    weight_decay_mode: WeightDecayMode = "decoupled"

    def update(
        self, rows_UD: Tensor, grads_UD: Tensor, state: Mapping[str, Tensor], step: int, lr_factor: float
    ) -> None:
        """See `RowOptimizer`."""
        lr = self.lr * lr_factor
        decay(grads_UD, rows_UD, lr, self.weight_decay, self.weight_decay_mode)
        rows_UD.sub_(self.direction(grads_UD, state, step).mul_(lr))


@dataclass(frozen=True)
class RowLamb(_Moments):
    """LAMB (You et al., 2019, algorithm 2) with a row as its layer, as FBGEMM's.

    u = m' / (sqrt(v') + eps) + weight_decay w;  w -= lr |w| / |u| u, and lr u where |w| or |u| is 0.

    Args:
        lr: learning rate.
        betas: as of Adam.
        eps: above 0.
        weight_decay: of the touched rows only.
    """

    lr: float
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-6
    weight_decay: float = 0.0

    def update(
        self, rows_UD: Tensor, grads_UD: Tensor, state: Mapping[str, Tensor], step: int, lr_factor: float
    ) -> None:
        """See `RowOptimizer`."""
        update_UD = self.direction(grads_UD, state, step)
        if self.weight_decay:
            update_UD.add_(rows_UD, alpha=self.weight_decay)
        row_norm_U1 = torch.linalg.vector_norm(rows_UD, dim=1, keepdim=True)
        update_norm_U1 = torch.linalg.vector_norm(update_UD, dim=1, keepdim=True)
        both = (row_norm_U1 > 0) & (update_norm_U1 > 0)
        trust_U1 = torch.where(both, row_norm_U1 / update_norm_U1, 1.0)
        rows_UD.sub_(update_UD.mul_(trust_U1.mul_(self.lr * lr_factor)))
