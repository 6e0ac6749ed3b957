# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Logs a preview's file as a picture to a Lightning logger whose tracker shows pictures."""

from pathlib import Path

from lightning.pytorch.loggers import Logger, MLFlowLogger, TensorBoardLogger, WandbLogger

NAME = "preview"


def log_picture(logger: Logger, file: Path, step: int) -> None:
    """Hand a picture on; Lightning's loggers have no common word for it, so each is told in its own."""
    if isinstance(logger, WandbLogger):
        logger.log_image(NAME, [str(file)], step=step)
    elif isinstance(logger, MLFlowLogger):
        logger.experiment.log_artifact(logger.run_id, str(file), "samples")
    elif isinstance(logger, TensorBoardLogger):
        import numpy as np
        from PIL import Image

        with Image.open(file) as picture:
            logger.experiment.add_image(NAME, np.asarray(picture.convert("RGB")), step, dataformats="HWC")
