"""Logs numbers to more than metrics.jsonl, one file each: TensorBoard, Weights & Biases, MLflow, CSV."""

from nemo_vfm.train.loggers.csv import Csv
from nemo_vfm.train.loggers.logger_source import LightningLogger, LoggerSource
from nemo_vfm.train.loggers.mlflow import MLflow
from nemo_vfm.train.loggers.tensorboard import TensorBoard
from nemo_vfm.train.loggers.wandb import WeightsAndBiases

__all__ = ["Csv", "LightningLogger", "LoggerSource", "MLflow", "TensorBoard", "WeightsAndBiases"]
