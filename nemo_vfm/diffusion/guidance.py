# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Two estimates of the clean latents in, with and without the text; one that follows the text more closely out."""

from torch import Tensor


class ClassifierFree:
    """uncond + scale (cond - uncond), the usual convention (Ho and Salimans 2022, equation 6 with scale = 1 + w).

    Args:
        scale: 1 is the conditional model unchanged and costs half, 0 ignores the text, above 1 exaggerates it.
    """

    def __init__(self, *, scale: float = 3.0) -> None:
        if scale < 0:
            raise ValueError(f"scale must not be negative, got {scale}")
        self.scale = scale

    def needs_uncond(self) -> bool:
        """False where the conditional estimate alone is the answer."""
        return self.scale != 1.0

    def combine(self, cond: Tensor, uncond: Tensor) -> Tensor:
        """The guided estimate."""
        return uncond + self.scale * (cond - uncond)
