"""Logs to MLflow: into a database in the run folder, or at a server where the recipe says online."""

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.network.permission import Recipient, SentText
from nemo_vfm.core.optional import needs_packages, require
from nemo_vfm.core.secret import conceal
from nemo_vfm.train.loggers import identity
from nemo_vfm.train.loggers.logger_arguments import refuse_keys

if TYPE_CHECKING:
    from lightning.pytorch.loggers import Logger

SERVER = "MLFLOW_TRACKING_URI"
_KEYS = ("MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD")
KEYS = "MLFLOW_TRACKING_TOKEN (or MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD)"


@needs_packages("mlflow")
@needs_packages("sqlalchemy", "alembic", where={"mode": "offline"})
class MLflow:
    """A run in `mlflow/mlflow.db` of the run folder, or at a server.

    Look at it with `mlflow server --backend-store-uri sqlite:///DIR/mlflow/mlflow.db`. A run that goes on keeps its
    number. The server comes from MLFLOW_TRACKING_URI, where its keys are, too (MLFLOW_TRACKING_TOKEN, or
    MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD), never from a recipe: whoever wrote it could have the keys
    sent to a server of his own.

    Args:
        experiment: the experiment's name.
        name: the run's name; None takes the run folder's.
        mode: offline takes a database in the run folder; online sends to the server while training.
        tags: more about the run, by name.
    """

    def __init__(
        self, *, experiment: SentText = "nemo_vfm", name: SentText | None = None,
        mode: Literal["offline", "online"] = "offline", tags: Mapping[str, SentText] | None = None,
    ) -> None:  # fmt: skip
        listed = {f"tags.{key}": tag for key, tag in (tags or {}).items()}
        refuse_keys(KEYS, experiment=experiment, name=name, **listed)
        self.experiment, self.name, self.tags = experiment, name, dict(tags or {})
        self.mode: Literal["offline", "online"] = mode

    def recipients(self) -> Sequence[Recipient]:
        """See `Sends.recipients`."""
        if self.mode == "offline":
            return ()
        gets = f"the recipe, every number and the previews of a training, in the experiment {self.experiment}"
        used = tuple(name for name in _KEYS if os.environ.get(name))
        return (
            Recipient(os.environ.get(SERVER, "") or f"the server of {SERVER}, which is not set,", gets, used, SERVER),
        )

    def open(self, folder: Path) -> "Logger":
        """An MLFlowLogger on a new run, or on the run that was begun before."""
        server = None
        if self.mode == "online":  # it stands in files of the run folder, so it holds no password
            server = os.environ.get(SERVER, "")
            if not server.startswith(("https://", "http://", "databricks")):
                raise UserError(f"MLflow online needs a server: export {SERVER}=https://..., or set mode: offline")
            try:
                refuse_keys(KEYS, **{SERVER: server})
            except ValueError as error:
                raise UserError(str(error)) from error
        # No reports of use to its makers, and no minutes of attempts while a server is away: the step waits for them.
        os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
        require("mlflow", purpose="The MLflow logger")
        logging.getLogger("mlflow").setLevel(logging.WARNING)  # tables of the database, one by one
        home = folder.absolute() / "mlflow"
        home.mkdir(parents=True, exist_ok=True)
        if server is None:  # MLflow refuses new stores of plain files since 3.10; a database needs these
            require("sqlalchemy", purpose="The MLflow logger's database")
            require("alembic", purpose="The MLflow logger's database")
        from lightning.pytorch.loggers import MLFlowLogger

        place = (home / "id.json", server, self.experiment)
        earlier = identity.find(*place)
        logger = MLFlowLogger(
            conceal(self.experiment), run_name=conceal(self.name or folder.name), run_id=earlier,
            tags={conceal(name): conceal(tag) for name, tag in self.tags.items()},
            tracking_uri=server or f"sqlite:///{home / 'mlflow.db'}",
            artifact_location=None if server else str(home / "artifacts"),
        )  # fmt: skip
        if earlier is None:
            assert logger.run_id is not None, "MLflow gives every run a number"
            identity.keep(*place, number=logger.run_id)
        else:  # it ended as failed or finished before; now it runs
            logger.experiment.update_run(earlier, status="RUNNING")
        return logger
