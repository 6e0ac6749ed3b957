"""Keeps the amax of past steps, from which delayed scaling takes the factors of the next one."""

import torch
from torch import Tensor

from nemo_vfm.core.device import device
from nemo_vfm.core.fp8 import Fp8
from nemo_vfm.parallel.fp8.quantise import E4M3, E5M2, factor_of

#: The operands of a linear's products.
ROLES = ("input", "weight", "gradient")


class AmaxHistory:
    """The history of a linear's operands, a row for each of `ROLES`. It is state of the training, not of the model.

    A step adds one entry, however often its forward pass runs: micro-batches and recomputation share it as a maximum.
    """

    def __init__(self, spec: Fp8) -> None:
        self.margin = spec.margin
        self.dtypes = (E4M3, E4M3, E5M2 if spec.gradients_in_e5m2 else E4M3)
        where = device()  # a compiled block that had to move them would be compiled anew in the second step
        self.factor = torch.ones(3, device=where)  #: (3,), an element is the number times it
        #: (3, length), by step; column 0 is that of the step under way
        self.amax = torch.zeros(3, spec.history, device=where)

    def factor_for(self, role: str, device: torch.device) -> Tensor:
        """The factor of an operand in this step, (), fixed by the steps before."""
        self._to(device)
        return self.factor[ROLES.index(role)]

    @torch.no_grad()
    def see(self, role: str, amax: Tensor) -> None:
        """Note the amax of a tensor of the step under way, ()."""
        self._to(amax.device)
        entry = self.amax[ROLES.index(role), 0]
        entry.copy_(torch.maximum(entry, amax.float()))

    @torch.no_grad()
    def close_step(self) -> None:
        """Take the next step's factors from the history, which moves on by one.

        factor = (max / amax) / 2^margin, amax the largest of the history; the old one stays where amax is 0, infinite
        or NaN.
        """
        amax = self.amax.amax(1)
        found = torch.stack([factor_of(one, dtype) for one, dtype in zip(amax, self.dtypes, strict=True)])
        self.factor = torch.where((amax > 0) & torch.isfinite(amax), found / 2.0**self.margin, self.factor)
        self.amax = self.amax.roll(-1, 1)
        self.drop_step()

    def ages(self) -> list[int]:
        """How many steps ago the amax was seen that each factor is of; 0 where none was yet."""
        length = self.amax.shape[1]
        newest_first = self.amax.flip(1)[:, : length - 1]  # column 0 is the step under way
        return [int(row.argmax()) + 1 if row.numel() and row.max() > 0 else 0 for row in newest_first]

    def drop_step(self) -> None:
        """Forget the step under way, whose update was left out."""
        self.amax[:, 0] = 0

    def _to(self, device: torch.device) -> None:
        if self.amax.device != device:
            self.factor, self.amax = self.factor.to(device), self.amax.to(device)
