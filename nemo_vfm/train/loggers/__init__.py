"""Logs numbers to more than metrics.jsonl, one file each: TensorBoard, Weights & Biases, MLflow, CSV."""

import pkgutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nemo_vfm.train.loggers.csv import Csv
    from nemo_vfm.train.loggers.mlflow import MLflow
    from nemo_vfm.train.loggers.tensorboard import TensorBoard
    from nemo_vfm.train.loggers.wandb import WeightsAndBiases

__all__ = ["Csv", "MLflow", "TensorBoard", "WeightsAndBiases"]
_FILES = {"Csv": "csv", "MLflow": "mlflow", "TensorBoard": "tensorboard", "WeightsAndBiases": "wandb"}


def __getattr__(name: str) -> object:
    """Import the file of a logger that is named; a recipe has one of them at most."""
    if name not in _FILES:
        raise AttributeError(name)
    return pkgutil.resolve_name(f"{__name__}.{_FILES[name]}:{name}")
