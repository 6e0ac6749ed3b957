"""Logs a preview's files to a Lightning logger: its picture, and its video where the tracker shows videos."""

from pathlib import Path

from lightning.pytorch.loggers import Logger, MLFlowLogger, TensorBoardLogger, WandbLogger

NAME = "preview"


def log_picture(logger: Logger, file: Path, step: int) -> None:
    """Hand a picture on, and the video beside it; each of Lightning's loggers has a word of its own for that."""
    video = file.with_suffix(".mp4")
    if isinstance(logger, WandbLogger):
        logger.log_image(NAME, [str(file)], step=step)
        if video.is_file():
            logger.log_video(f"{NAME}_video", [str(video)], step=step, format=["mp4"])
    elif isinstance(logger, MLFlowLogger):
        for one in filter(Path.is_file, (file, video)):
            logger.experiment.log_artifact(logger.run_id, str(one), "samples")
    elif isinstance(logger, TensorBoardLogger):
        import numpy as np
        from PIL import Image

        with Image.open(file) as picture:
            logger.experiment.add_image(NAME, np.asarray(picture.convert("RGB")), step, dataformats="HWC")
