"""Writes NeMo's exp_manager section from a recipe, with all folders inside the run folder."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.types.json_value import Json

NAME = "nemo"  #: NeMo's own folder below the run folder
#: What these write goes to a server of theirs or beside the run folder, and NeMo gives no way to move it.
_OUTSIDE = ("create_clearml_logger", "create_neptune_logger", "create_dllogger_logger")


class Bookkeeping:
    """NeMo's exp_manager, with its arguments typed and named; folders and resuming are the run folder's business.

    Args:
        tensorboard: write TensorBoard files.
        save_every_steps: optimizer steps between checkpoints; None saves after each validation, as NeMo does.
        save_top_k: how many of the best checkpoints stay.
        monitor: the logged value that says which is best.
        mode: whether lower or higher is better.
        early_stopping_patience: validations without improvement after which training ends; None never ends early.
        log_step_timing: log the seconds of each step.
        ema_decay: of the moving average of the weights; None keeps none.
        max_time: training ends after this long and goes on when it is started again, "DD:HH:MM:SS"; None sets no limit.
    """

    def __init__(
        self, *, tensorboard: bool = True, save_every_steps: int | None = None, save_top_k: int = 3,
        monitor: str = "val_loss", mode: Literal["min", "max"] = "min", early_stopping_patience: int | None = None,
        log_step_timing: bool = True, ema_decay: float | None = None, max_time: str | None = None,
    ) -> None:  # fmt: skip
        if save_every_steps is not None and save_every_steps < 1:
            raise ValueError(f"save_every_steps is {save_every_steps}; give one or more, or null")
        if ema_decay is not None and not 0 < ema_decay < 1:
            raise ValueError(f"ema_decay is {ema_decay}; give a number between 0 and 1, such as 0.999")
        self.tensorboard, self.save_every_steps, self.save_top_k = tensorboard, save_every_steps, save_top_k
        self.monitor, self.mode, self.early_stopping_patience = monitor, mode, early_stopping_patience
        self.log_step_timing, self.ema_decay, self.max_time = log_step_timing, ema_decay, max_time

    def section(self) -> dict[str, Json]:
        """The arguments under NeMo's names."""
        best: dict[str, Json] = {"monitor": self.monitor, "mode": self.mode, "save_top_k": self.save_top_k}
        if self.save_every_steps is not None:
            best |= {"every_n_train_steps": self.save_every_steps, "every_n_epochs": None}
        found: dict[str, Json] = {
            "create_tensorboard_logger": self.tensorboard,
            "log_step_timing": self.log_step_timing,
            "create_checkpoint_callback": True,
            "checkpoint_callback_params": best,
        }
        if self.early_stopping_patience is not None:
            stop = {"monitor": self.monitor, "mode": self.mode, "patience": self.early_stopping_patience}
            found |= {"create_early_stopping_callback": True, "early_stopping_callback_params": stop}
        if self.ema_decay is not None:
            found["ema"] = {"enable": True, "decay": self.ema_decay}
        return found if self.max_time is None else found | {"max_time_per_run": self.max_time}


def inside(section: Mapping[str, Json], folder: Path) -> dict[str, Json]:
    """A section whose folders all lie in `folder`, and which goes on where a checkpoint is there.

    Raises:
        UserError: it asks for a logger that writes elsewhere.
    """
    if refused := [name for name in _OUTSIDE if section.get(name)]:
        raise UserError(f"exp_manager.{refused[0]} writes outside the run folder; use TensorBoard, wandb or MLflow")
    mine: dict[str, Json] = {
        **section, "exp_dir": str(folder), "explicit_log_dir": None, "name": NAME, "version": None,
        "use_datetime_version": False, "resume_if_exists": True, "resume_ignore_no_checkpoint": True,
        "resume_past_end": True, "resume_from_checkpoint": None,
    }  # fmt: skip
    params = {"save_nemo_on_train_end": False, **(section.get("checkpoint_callback_params") or {}), "dirpath": None}
    mine["checkpoint_callback_params"] = params  # the archive is written once, by the job, as model.nemo
    if section.get("create_wandb_logger"):
        mine["wandb_logger_kwargs"] = {**(section.get("wandb_logger_kwargs") or {}), "save_dir": str(folder / NAME)}
    if section.get("create_mlflow_logger"):
        store = {"tracking_uri": f"file://{(folder / 'mlruns').absolute()}", "save_dir": None}
        mine["mlflow_logger_kwargs"] = {**(section.get("mlflow_logger_kwargs") or {}), **store}
    return mine
