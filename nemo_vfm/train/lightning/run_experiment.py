"""Keeps in the run folder what a module gives to `logger.experiment`, by the calls of TensorBoard's SummaryWriter."""

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from io import BytesIO
from typing import Any
from urllib.parse import quote

import numpy as np
import torch
from PIL import Image

from nemo_vfm.core import log, progress
from nemo_vfm.core.secret import conceal
from nemo_vfm.core.storage.files import write_bytes
from nemo_vfm.core.storage.write_path import WritePath

FOLDER = "pictures"
MAX_TAGS = 100
MAX_A_TAG = 200  # files, of which every second goes where there would be more
MAX_SIDE_PX = 1024
MAX_STEP = 10**12 - 1
_COLUMNS = 8  # of a grid of several pictures, as TensorBoard has it


class RunExperiment:
    """Takes pictures, figures and numbers; any other `add_...` is refused once in words and then ignored.

    Args:
        folder: the run folder.
        write: takes the numbers, for metrics.jsonl.
    """

    def __init__(self, folder: WritePath, write: Callable[[Mapping[str, Any]], None]) -> None:
        self.log_dir, self._pictures, self._write = str(folder), folder / FOLDER, write

    def get_logdir(self) -> str:
        """The run folder."""
        return self.log_dir

    def add_scalar(self, tag: str, scalar_value: Any, *_: Any, **__: Any) -> None:
        """A number; it stands at the run's step, as all lines of metrics.jsonl do, whatever number comes with it."""
        self._write({tag: scalar_value})

    def add_scalars(self, main_tag: str, tag_scalar_dict: Mapping[str, Any], *_: Any, **__: Any) -> None:
        """Several at once."""
        self._write({f"{main_tag}/{tag}": value for tag, value in tag_scalar_dict.items()})

    def add_image(
        self, tag: str, img_tensor: Any, global_step: Any = None, walltime: Any = None, dataformats: str = "CHW"
    ) -> None:
        """A picture, or a grid of several."""
        self._save(tag, Image.fromarray(_pixels(tag, img_tensor, dataformats)), global_step)

    def add_images(
        self, tag: str, img_tensor: Any, global_step: Any = None, walltime: Any = None, dataformats: str = "NCHW"
    ) -> None:
        """A grid of several."""
        self.add_image(tag, img_tensor, global_step, walltime, dataformats)

    def add_figure(
        self, tag: str, figure: Any, global_step: Any = None, close: bool = True, walltime: Any = None
    ) -> None:
        """A figure of matplotlib, or several side by side, which are closed as SummaryWriter closes them."""
        figures = list(figure) if isinstance(figure, Sequence) else [figure]
        pictures = list[Image.Image]()
        for one in figures:
            buffer = BytesIO()
            one.savefig(buffer, format="png")
            pictures.append(Image.open(buffer).convert("RGB"))
        size = sum(picture.width for picture in pictures), max(picture.height for picture in pictures)
        whole, left = Image.new("RGB", size, "white"), 0
        for picture in pictures:
            whole.paste(picture, (left, 0))
            left += picture.width
        self._save(tag, whole, global_step)
        if close and (pyplot := sys.modules.get("matplotlib.pyplot")):  # without it no figure is open
            for one in figures:
                pyplot.close(one)

    def flush(self) -> None:
        """Nothing waits."""

    def close(self) -> None:
        """Nothing is open."""

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("add_"):
            raise AttributeError(f"the run folder's logger.experiment takes the calls of TensorBoard's SummaryWriter, "
                                 f"which has no {name!r}; name the logger that has it under loggers:")  # fmt: skip

        def ignore(*_: Any, **__: Any) -> None:
            log.warn_once(f"the module calls logger.experiment.{name}, which the run folder does not keep (it keeps "
                          f"pictures, figures and scalars); to keep all, add "
                          f"loggers.board={{_target_: nemo_vfm.train.loggers.TensorBoard}}")  # fmt: skip

        return ignore

    def _save(self, tag: str, picture: Image.Image, step: Any) -> None:
        """`pictures/TAG/step-N.png`: N is what the module says, which may count epochs, or the run's step."""
        name = quote(conceal(str(tag)), safe="") or "%20"  # a tag leads to no other folder
        name = f"%2E{name[1:]}" if name.startswith(".") else name
        name = name if len(name) <= 100 else f"{name[:80]}-{sha256(name.encode()).hexdigest()[:16]}"
        folder = self._pictures / name
        if not folder.is_dir() and self._pictures.is_dir() and len(list(self._pictures.iterdir())) >= MAX_TAGS:
            log.warn_once(
                f"pictures under more than {MAX_TAGS} names are not kept: log them under one name, with a number"
            )
            return
        folder.mkdir(parents=True, exist_ok=True)
        picture.thumbnail((MAX_SIDE_PX, MAX_SIDE_PX))
        number = min(max(0, int(progress.current().get("step", 0) if step is None else step)), MAX_STEP)
        buffer = BytesIO()
        picture.save(buffer, "PNG")
        write_bytes(folder / f"step-{number:08d}.png", buffer.getvalue())
        if len(found := sorted(folder.glob("step-*.png"))) > MAX_A_TAG:
            for path in found[1:-1:2]:
                path.unlink()


def _pixels(tag: str, values: Any, dataformats: str) -> np.ndarray:
    """Rows of RGB: as TensorBoard, fractions become 0 to 255, several pictures a grid, and one channel grey."""
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu()
        values = values.float() if values.is_floating_point() else values
    values, letters = np.asarray(values), dataformats.upper()
    if sorted(letters) != sorted(set(letters) & set("NHWC")) or not {"H", "W"} <= set(letters) or values.size == 0 \
            or values.ndim != len(letters):  # fmt: skip
        raise ValueError(f"the picture {tag!r} has shape {tuple(values.shape)}, which is not {dataformats}; give its "
                         f"order as dataformats, such as CHW, HWC, HW or NCHW")  # fmt: skip
    values = values.transpose([letters.index(letter) for letter in "NHWC" if letter in letters])
    values = values if "C" in letters else values[..., None]
    values = values if "N" in letters else values[None]
    if values.dtype != np.uint8:
        values = (np.nan_to_num(values.astype(np.float32)) * 255).clip(0, 255).astype(np.uint8)
    if values.shape[-1] not in (1, 3, 4):
        raise ValueError(f"the picture {tag!r} has {values.shape[-1]} channels; give 1, 3 or 4")
    # Rows of at most eight, from the left above.
    values_NHWC = np.repeat(values, 3, -1) if values.shape[-1] == 1 else values
    count, height, width, channels = values_NHWC.shape
    columns = min(count, _COLUMNS)
    rows = math.ceil(count / columns)
    grid = np.zeros((rows * columns, height, width, channels), np.uint8)
    grid[:count] = values_NHWC
    grid = grid.reshape(rows, columns, height, width, channels).swapaxes(1, 2)
    return grid.reshape(rows * height, columns * width, channels)
