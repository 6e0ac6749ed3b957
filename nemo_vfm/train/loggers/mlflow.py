# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""A run folder in, an MLflow run out: in a database in the folder, or at a server where the recipe names one."""

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from nemo_vfm.core.optional import require
from nemo_vfm.core.secret import conceal
from nemo_vfm.train.loggers import identity
from nemo_vfm.train.loggers.arguments import refuse_keys

if TYPE_CHECKING:
    from lightning.pytorch.loggers import Logger, MLFlowLogger

KEYS = "MLFLOW_TRACKING_TOKEN (or MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD)"


class MLflow:
    """A run in `mlflow/mlflow.db` of the run folder, or at a server.

    Look at it with `mlflow server --backend-store-uri sqlite:///DIR/mlflow/mlflow.db`. A run that goes on keeps its
    number. Keys come from MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD.

    Args:
        experiment: the experiment's name.
        name: the run's name; None takes the run folder's.
        tracking_uri: a server such as https://mlflow.example.org; None takes a database in the run folder.
        tags: more about the run, by name.
    """

    def __init__(
        self, *, experiment: str = "nemo_vfm", name: str | None = None, tracking_uri: str | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        listed = {f"tags.{key}": tag for key, tag in (tags or {}).items()}
        refuse_keys(KEYS, experiment=experiment, name=name, tracking_uri=tracking_uri, **listed)
        if tracking_uri is not None and not tracking_uri.startswith(("https://", "http://", "databricks")):
            raise ValueError("tracking_uri is a server such as https://mlflow.example.org, or null for a database in "
                             "the run folder")  # fmt: skip
        self.experiment, self.name, self.tracking_uri, self.tags = experiment, name, tracking_uri, dict(tags or {})

    def open(self, folder: Path) -> "Logger":
        """An MLFlowLogger on a new run, or on the run that was begun before."""
        _be_quiet()
        require("mlflow", install="nemo_vfm[mlflow]", purpose="The MLflow logger")
        logging.getLogger("mlflow").setLevel(logging.WARNING)  # tables of the database, one by one
        home = folder.absolute() / "mlflow"
        home.mkdir(parents=True, exist_ok=True)
        if self.tracking_uri is None:  # MLflow refuses new stores of plain files since 3.10; a database needs these
            require("sqlalchemy", install="nemo_vfm[mlflow]", purpose="The MLflow logger's database")
            require("alembic", install="nemo_vfm[mlflow]", purpose="The MLflow logger's database")
        return self._logger(folder, home)

    def _logger(self, folder: Path, home: Path) -> "Logger":
        from lightning.pytorch.loggers import MLFlowLogger

        place = (home / "id.json", self.tracking_uri, self.experiment)
        earlier = identity.find(*place)
        logger = MLFlowLogger(
            conceal(self.experiment), run_name=conceal(self.name or folder.name), run_id=earlier,
            tags={conceal(name): conceal(tag) for name, tag in self.tags.items()},
            tracking_uri=self.tracking_uri or f"sqlite:///{home / 'mlflow.db'}",
            artifact_location=None if self.tracking_uri else str(home / "artifacts"),
        )  # fmt: skip
        if earlier is None:
            identity.keep(*place, number=_number(logger))
        else:  # it ended as failed or finished before; now it runs
            logger.experiment.update_run(earlier, status="RUNNING")
        return logger


def _number(logger: "MLFlowLogger") -> str:
    assert logger.run_id is not None, "MLflow gives every run a number"
    return logger.run_id


def _be_quiet() -> None:
    """No reports of use to its makers, and no minutes of attempts while a server is away: the step waits for them."""
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
