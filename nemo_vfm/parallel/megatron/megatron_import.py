"""Imports Megatron-Core, or says in one sentence why it cannot be used here."""

import os
import warnings

import torch

from nemo_vfm.core.errors import MissingPackage, UserError
from nemo_vfm.core.optional import available, require


def require_megatron() -> None:
    """Import Megatron-Core and make sure that tensors can be put on the device it expects.

    Raises:
        MissingPackage: it is not installed.
        UserError: Transformer Engine is installed and broken, or there is no GPU.
    """
    _require_whole_transformer_engine()
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # it imports wandb where that is installed
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it says what is not installed beside it
            import megatron.core
            import megatron.core.optimizer
            import megatron.core.pipeline_parallel
    except ImportError as error:
        raise MissingPackage(
            f"engine=megatron needs Megatron-Core, which cannot be imported here ({error}). Install it with: pip "
            f"install 'nemo_vfm[megatron]'"
        ) from error
    _require_gpu(megatron.core.__version__)


def _require_whole_transformer_engine() -> None:
    """Megatron-Core guards its import against ImportError alone, and an empty package raises RuntimeError."""
    if not available("transformer_engine"):
        return
    try:
        require("transformer_engine", purpose="engine=megatron")
    except Exception as error:
        raise UserError(
            f"Transformer Engine is installed but cannot be imported ({error}), and Megatron-Core would fail on it. "
            f"Install transformer-engine[pytorch], or uninstall transformer-engine."
        ) from error


def _require_gpu(version: str) -> None:
    try:
        torch.zeros(1, device="cuda")
    except (RuntimeError, AssertionError) as error:
        raise UserError(
            f"Megatron-Core {version} needs NVIDIA GPUs, and this process has none ({error}). Use engine=torch."
        ) from error
