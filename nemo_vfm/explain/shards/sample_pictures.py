"""Shows frames of samples side by side on one sheet, as a PNG or drawn in the terminal.

Latents are shown in false colours: their first three channels as red, green and blue, each stretched from its 1st to
its 99th percentile. This shows what moves and where, not how it looks.

Shape letters: T frames, H height, W width, C channels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.storage.files import atomic_path
from nemo_vfm.data.shards.safetensors_views import stored_tensors
from nemo_vfm.data.shards.sample_members import LATENTS, is_image, media_among
from nemo_vfm.data.shards.sample_reader import Samples, facts_of
from nemo_vfm.data.shards.shard_files import Entry
from nemo_vfm.data.video.decode import open_video
from nemo_vfm.data.video.fit_to_bucket import decode_image

Pixels = NDArray[np.uint8]
_CELL_PX, _GAP_PX, _LABEL_PX = 320, 6, 22
_PAPER, _INK = 24, (210, 210, 210)


@dataclass(frozen=True, slots=True)
class SheetPicture:
    """One picture of a sheet."""

    pixels: Pixels  #: (H, W, 3) RGB
    label: str  #: what stands below it


def frames_of(samples: Samples, entry: Entry, most: int) -> list[SheetPicture]:
    """Up to `most` frames of a sample, spread over its length; none where it holds no picture."""
    extension = media_among(entry.members)
    if extension is not None and is_image(extension):
        return [SheetPicture(decode_image(samples.read(entry, extension)), extension)]
    if extension is not None:
        with open_video(samples.read(entry, extension)) as reader:
            info = reader.info()
            numbers = list(dict.fromkeys(_spread(info.num_frames, most)))
            frames_THWC = reader.read(numbers)
        return [
            SheetPicture(pixels, f"frame {number}, {number / info.fps:.2f} s")
            for number, pixels in zip(numbers, frames_THWC, strict=True)
        ]
    if LATENTS in entry.members:
        stored = stored_tensors(samples.read(entry, LATENTS)).get("latents")
        if stored is None or len(stored.shape) != 4 or not stored.is_finite():
            raise DataError(f"sample {entry.key} has no latents of four axes that are all finite")
        latents_CTHW = (
            (stored.data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
            if str(stored.dtype) == "torch.bfloat16"
            else stored.data.view(f"f{stored.dtype.itemsize}").astype(np.float32)
        ).reshape(stored.shape)
        coloured_THWC = np.moveaxis(latents_CTHW[[0, 1, 2] if len(latents_CTHW) > 2 else [0, 0, 0]], 0, -1)
        low, high = np.percentile(coloured_THWC, (1, 99), axis=(0, 1, 2))
        pixels_THWC = np.clip((coloured_THWC - low) / np.maximum(high - low, 1e-6) * 255, 0, 255).astype(np.uint8)
        try:
            rate = f"{float(facts_of(samples, entry)['fps']):.4g} fps"
        except (DataError, KeyError, TypeError, ValueError):
            rate = "rate unknown"
        return [
            SheetPicture(pixels_THWC[t], f"latent {t}, {rate}") for t in dict.fromkeys(_spread(len(pixels_THWC), most))
        ]
    return []


def first_frames(samples: Samples, most: int) -> list[SheetPicture]:
    """The first picture of up to `most` samples, spread over all; damaged samples are left out."""
    entries, found = samples.entries, []
    for number in dict.fromkeys(_spread(len(entries), most)):
        try:
            frames = frames_of(samples, entries[number], 1)
        except DataError:
            continue
        found += [SheetPicture(frame.pixels, entries[number].key) for frame in frames]
    return found


def sheet(frames: Sequence[SheetPicture]) -> Pixels:
    """All frames in a grid, up to four in a row, with their labels below."""
    columns = min(4, len(frames))
    cells: list[Pixels] = []
    for frame in frames:
        height, width = frame.pixels.shape[:2]
        # Small ones grow in squares, so that their pixels show.
        way = cv2.INTER_AREA if width >= _CELL_PX else cv2.INTER_NEAREST
        picture = cv2.resize(frame.pixels, (_CELL_PX, max(1, round(height * _CELL_PX / width))), interpolation=way)
        label = np.full((_LABEL_PX, _CELL_PX, 3), _PAPER, np.uint8)
        cv2.putText(label, frame.label[:44], (2, 15), cv2.FONT_HERSHEY_SIMPLEX, 0.42, _INK, 1, cv2.LINE_AA)
        cells.append(np.concatenate([picture, label]).astype(np.uint8, copy=False))
    height = max(cell.shape[0] for cell in cells)
    rows = -(-len(cells) // columns)
    size = (_GAP_PX + rows * (height + _GAP_PX), _GAP_PX + columns * (_CELL_PX + _GAP_PX), 3)
    paper = np.full(size, _PAPER, np.uint8)
    for number, cell in enumerate(cells):
        row, column = divmod(number, columns)
        top, left = _GAP_PX + row * (height + _GAP_PX), _GAP_PX + column * (_CELL_PX + _GAP_PX)
        paper[top : top + cell.shape[0], left : left + _CELL_PX] = cell
    return paper


def write_sheet(path: Path, frames: Sequence[SheetPicture]) -> None:
    """Write a sheet as a PNG, whole or not at all."""
    if path.suffix.lower() != ".png":
        raise UserError(f"the sheet is a PNG, so --out must end in .png, and {path.name} does not")
    _, data = cv2.imencode(".png", sheet(frames)[..., ::-1])
    try:
        with atomic_path(path) as temporary:
            temporary.write_bytes(data.tobytes())
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror or error}") from error


def blocks(frames: Sequence[SheetPicture], columns: int) -> list[str]:
    """Up to four frames in a row as lines of a terminal that knows 24-bit colours: two pixels a character."""
    shown = frames[:4]
    width = min(60, max(8, (columns + 1) // len(shown) - 1))
    pictures: list[Pixels] = []
    for frame in shown:
        rows = max(2, round(frame.pixels.shape[0] * width / frame.pixels.shape[1]))
        small = cv2.resize(frame.pixels, (width, rows + rows % 2), interpolation=cv2.INTER_AREA)
        pictures.append(small.astype(np.uint8, copy=False))
    height = max(len(picture) for picture in pictures)
    lines = []
    for row in range(0, height, 2):
        cells = [" " * width] * len(pictures)
        for number, picture in enumerate(pictures):
            if row < len(picture):
                pairs = zip(picture[row].tolist(), picture[row + 1].tolist(), strict=True)
                coloured = (f"\x1b[38;2;{a[0]};{a[1]};{a[2]}m\x1b[48;2;{b[0]};{b[1]};{b[2]}m▀" for a, b in pairs)
                cells[number] = "".join(coloured) + "\x1b[0m"
        lines.append(" ".join(cells).rstrip())
    return lines


def _spread(count: int, most: int) -> list[int]:
    """`most` places from the first to the last; the middle where it is one."""
    if most == 1 or count == 1:
        return [count // 2]
    return [round(place * (count - 1) / (min(most, count) - 1)) for place in range(min(most, count))]
