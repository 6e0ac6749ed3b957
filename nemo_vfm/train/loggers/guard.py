"""Wraps a Lightning logger so that its errors cannot end a run: each is reported once, and metrics.jsonl has it all.

Servers go away and disks fill up; neither is a reason to lose days of training. After an error the logger pauses for
a minute, since each attempt may take seconds, and is then tried again.
"""

import time
from argparse import Namespace
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import Logger, MLFlowLogger, TensorBoardLogger, WandbLogger

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.log import warn
from nemo_vfm.core.secret import conceal, conceal_names
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.train.loggers.flat_settings import flatten
from nemo_vfm.train.state.slots import LightningLogger, LoggerSource

REST_S = 60.0
_PREVIEW = "preview"  # what pictures are called in a tracker


class GuardedLogger(Logger):
    """Passes on what it is given, without secrets, and keeps errors to itself.

    Args:
        name: how the recipe calls the logger.
        inner: the logger.
    """

    def __init__(self, name: str, inner: Logger) -> None:
        super().__init__()
        self._name, self.inner = name, inner
        self._rests_until = 0.0
        self._said = False

    @property
    def name(self) -> str:
        """The name in the recipe."""
        return self._name

    @property
    def version(self) -> str:
        """Runs are told apart by their folders."""
        return ""

    @property
    def experiment(self) -> Any:
        """The tracker's own object."""
        return getattr(self.inner, "experiment", None)

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Numbers of a step."""
        self._try(lambda: self.inner.log_metrics(conceal_names(metrics), step))

    def log_picture(self, file: Path, step: int) -> None:
        """A preview."""
        self._try(lambda: _log_picture(self.inner, file, step))

    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """The run's settings."""
        self._try(lambda: self.inner.log_hyperparams(params, *args, **kwargs))

    def save(self) -> None:
        """Write what waits."""
        self._try(self.inner.save)

    def finalize(self, status: str) -> None:
        """The end; tried even where the logger rests."""
        self._rests_until = 0.0
        self._try(lambda: self.inner.finalize(status))

    def _try(self, action: Callable[[], None]) -> None:
        if time.monotonic() < self._rests_until:
            return
        try:
            action()
        except Exception as error:
            self._rests_until = time.monotonic() + REST_S
            if not self._said:
                self._said = True
                warn(f"the logger {self._name} failed ({_sentence(error)}); training continues without it and "
                     f"retries every {REST_S:.0f} s; metrics.jsonl is complete")  # fmt: skip


def _log_picture(logger: Logger, file: Path, step: int) -> None:
    """Hand a picture on, and the video beside it; each of Lightning's loggers has a word of its own for that."""
    video = file.with_suffix(".mp4")
    if isinstance(logger, WandbLogger):
        logger.log_image(_PREVIEW, [str(file)], step=step)
        if video.is_file():
            logger.log_video(f"{_PREVIEW}_video", [str(video)], step=step, format=["mp4"])
    elif isinstance(logger, MLFlowLogger):
        for one in filter(Path.is_file, (file, video)):
            logger.experiment.log_artifact(logger.run_id, str(one), "samples")
    elif isinstance(logger, TensorBoardLogger):
        import numpy as np
        from PIL import Image

        with Image.open(file) as picture:
            logger.experiment.add_image(_PREVIEW, np.asarray(picture.convert("RGB")), step, dataformats="HWC")


def open_all(
    sources: Mapping[str, LoggerSource | LightningLogger], folder: Path, settings: Mapping[str, Json], *, goes_on: bool
) -> list[GuardedLogger]:
    """Open every logger and tell it the run's settings.

    One that cannot be opened is a UserError at the start, when nothing is lost and somebody may still be looking; a run
    that goes on leaves it out.
    """
    opened: list[GuardedLogger] = []
    for name, source in sources.items():
        try:
            logger = GuardedLogger(name, logger_of(name, source, folder))
        except UserError:
            raise
        except Exception as error:
            if not goes_on:
                raise UserError(f"the logger {name} cannot be opened: {_sentence(error)}; fix it, or remove it with "
                                f"~loggers.{name}") from error  # fmt: skip
            warn(f"the logger {name} cannot be opened ({_sentence(error)}); training continues without it")
            continue
        if not goes_on:
            logger.log_hyperparams(flatten(settings))
        opened.append(logger)
    return opened


def logger_of(name: str, source: LoggerSource | LightningLogger, folder: Path) -> Logger:
    """The logger itself. UserError if it is of another package."""
    opened: object = source.open(folder) if isinstance(source, LoggerSource) else source
    if not isinstance(opened, Logger):
        raise UserError(f"loggers.{name}: {type(opened).__name__} is not a lightning.pytorch.loggers.Logger "
                        f"(pytorch_lightning's is a different class)")  # fmt: skip
    return opened


def _sentence(error: Exception) -> str:
    """The first line of an error; those of servers are pages."""
    line = (str(error).strip().splitlines() or [""])[0]
    return conceal(f"{type(error).__name__}: {line[:200]}")
