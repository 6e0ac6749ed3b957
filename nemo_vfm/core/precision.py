"""Maps the name of a precision to the dtypes of parameters and arithmetic. There is no other such map."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal

import torch

from nemo_vfm.core.device import device, has_fast_bf16
from nemo_vfm.core.fp8 import Fp8

PrecisionName = Literal["fp32", "bf16", "auto"]


@dataclass(frozen=True, slots=True)
class Precision:
    """What parameters are stored in and what matrix products are computed in.

    Args:
        compute: fp32; bf16 (fp32 parameters, bf16 autocast); or auto, which takes bf16 where
            the device multiplies it in hardware and fp32 elsewhere, and says which and why.
        fp8: the large linears of a training compute in FP8, and all else as `compute` says; None is none.
    """

    compute: PrecisionName = "auto"
    fp8: Fp8 | None = None

    def resolve(self) -> tuple[torch.dtype, str]:
        """The arithmetic dtype on this device, and the reason as text."""
        if self.compute == "auto":
            fast = has_fast_bf16()
            return (torch.bfloat16, "auto") if fast else (torch.float32, "auto: bfloat16 is slow here")
        return (torch.bfloat16 if self.compute == "bf16" else torch.float32), "by the recipe"

    def narrowest(self) -> Literal["fp32", "bf16", "fp8"]:
        """The narrowest numbers that anything is computed in."""
        if self.fp8 is not None:
            return "fp8"
        return "fp32" if self.resolve()[0] == torch.float32 else "bf16"

    def autocast(self) -> AbstractContextManager[object]:
        """The context in which forward passes run; backward follows the dtypes it recorded."""
        dtype, _ = self.resolve()
        if dtype == torch.float32:
            return nullcontext()
        return torch.autocast(device().type, dtype=dtype)
