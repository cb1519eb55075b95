"""Loggers: one a file. `output.loggers` names those that a run is to have."""

from cluster.loggers.logger import LoggedRun, Logger, Outcome
from cluster.loggers.mlflow import MLflow
from cluster.loggers.tensorboard import TensorBoard
from raysim.registry import Registry

LOGGERS = Registry("logger", {"tensorboard": TensorBoard, "mlflow": MLflow}, base=Logger)

__all__ = ["LOGGERS", "LoggedRun", "Logger", "MLflow", "Outcome", "TensorBoard"]
