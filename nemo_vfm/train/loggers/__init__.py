"""Logs numbers to more than metrics.jsonl, one file each: TensorBoard, Weights & Biases, MLflow, CSV."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nemo_vfm.train.loggers.csv import Csv
    from nemo_vfm.train.loggers.mlflow import MLflow
    from nemo_vfm.train.loggers.tensorboard import TensorBoard
    from nemo_vfm.train.loggers.wandb import WeightsAndBiases

__all__ = ["Csv", "MLflow", "TensorBoard", "WeightsAndBiases"]


def __getattr__(name: str) -> object:
    """Import the file of a logger when it is named; few recipes name more than one."""
    if name == "Csv":
        from nemo_vfm.train.loggers.csv import Csv

        return Csv
    if name == "MLflow":
        from nemo_vfm.train.loggers.mlflow import MLflow

        return MLflow
    if name == "TensorBoard":
        from nemo_vfm.train.loggers.tensorboard import TensorBoard

        return TensorBoard
    if name == "WeightsAndBiases":
        from nemo_vfm.train.loggers.wandb import WeightsAndBiases

        return WeightsAndBiases
    raise AttributeError(name)
