"""Splits shots with a trained network whose weights lie on this machine.

Shape letters: T frames, H height, W width, C colours (RGB).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import cv2
import numpy as np
from numpy.typing import NDArray

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.storage.files import sha256_file, sha256_text
from nemo_vfm.core.types.media_types import Frame, Span
from nemo_vfm.curate.split.shot_lengths import Lengths, ShortTail, SpanBuilder, check_lengths

if TYPE_CHECKING:
    from nemo_vfm.models.transnet import TransNetV2


class TransNetV2Split:
    """Cuts after each frame with which TransNet V2 begins to be sure that a shot ends; hard cuts and dissolves.

    It runs on the CPU, where the frames are. The last shot ends with the film, whatever its length, and a film
    without a cut is one shot.

    Args:
        weights: a safetensors file, or the folder that `nemo-vfm convert` makes of the authors' PyTorch checkpoint.
        threshold: how sure it must be, 0 to 1; lower finds more.
        min_length_s: the minimum distance of two cuts, in seconds.
        max_length_s: longer shots are cut into pieces of this length, in seconds.
        short_tail: a remainder of a long shot that is shorter than `min_tail_s`: merge it into the previous piece,
            or leave it.
        min_tail_s: in seconds.
    """

    def __init__(
        self,
        *,
        weights: Path,
        threshold: float = 0.4,
        min_length_s: float = 0.6,
        max_length_s: float = 20.0,
        short_tail: ShortTail = "merge",
        min_tail_s: float = 1.0,
    ) -> None:
        if not 0 < threshold < 1:
            raise ValueError(f"threshold must lie between 0 and 1, got {threshold}")
        check_lengths(min_length_s=min_length_s, max_length_s=max_length_s, min_tail_s=min_tail_s)
        self.weights, self.threshold = weights, threshold
        self.min_length_s, self.max_length_s = min_length_s, max_length_s
        self.short_tail, self.min_tail_s = short_tail, min_tail_s

    def fingerprint(self) -> str:
        """Changes with the settings and with any byte of the weights, and not with where they lie.

        Raises:
            UserError: there are no weights.
        """
        file = _file(self.weights)
        if not file.is_file():
            raise UserError(
                f"there are no weights at {file}; create them from the authors' checkpoint with nemo-vfm convert"
            )
        own = {name: value for name, value in vars(self).items() if name != "weights"}
        return sha256_text(f"{sha256_file(file)} {sorted(own.items())}")[:16]

    def ready(self) -> None:
        """See `Ready.ready`.

        Raises:
            UserError: there are no weights.
            DataError: they are another network's.
        """
        _model(self.weights)

    def spans(self, frames: Iterable[Frame], *, fps: float) -> Iterator[Span]:
        """See `Splitter.spans`; at most 75 frames behind.

        Raises:
            UserError: there are no weights.
            DataError: they are another network's.
        """
        lengths = Lengths.of(
            fps, min_length_s=self.min_length_s, max_length_s=self.max_length_s, short_tail=self.short_tail,
            min_tail_s=self.min_tail_s,
        )  # fmt: skip
        pieces, edges = SpanBuilder(lengths), EdgeCuts(self.threshold, lengths.min_frames)
        watcher = _Watcher(_model(self.weights))
        for frame in frames:
            cuts = edges.cuts(watcher.see(frame))
            yield from pieces.add(zip(cuts, cuts, strict=True), edges.count)
        cuts = edges.cuts(watcher.end())
        yield from pieces.add(zip(cuts, cuts, strict=True), 0)
        yield from pieces.end(watcher.count)


@dataclass(slots=True)
class EdgeCuts:
    """Probabilities that a shot ends in, cuts out: the frame after each rise over the threshold."""

    threshold: float
    min_frames: int
    count: int = 0
    _sure: bool = False
    _last: int = 0

    def cuts(self, probabilities: Iterable[float]) -> list[int]:
        """Those among the next frames. The frame that rises is the last of its shot."""
        found = []
        for probability in probabilities:
            sure = probability > self.threshold
            self.count += 1
            if sure and not self._sure and self.count > 1 and self.count - self._last >= self.min_frames:
                found.append(self.count)
                self._last = self.count
            self._sure = sure
        return found


@dataclass(slots=True)
class _Watcher:
    """Frames one after another in; probabilities out, fifty at a time and as soon as the network has seen enough."""

    _model: "TransNetV2"
    count: int = 0
    _held: list[NDArray[np.uint8]] = field(default_factory=list)  #: from the frame `_first` on
    _first: int = 0
    _num_returned: int = 0

    def see(self, frame: Frame) -> list[float]:
        from nemo_vfm.models.transnet import EDGE, HEIGHT_PX, STEP, WIDTH_PX

        small = cv2.resize(frame, (WIDTH_PX, HEIGHT_PX), interpolation=cv2.INTER_AREA)
        self._held.append(np.asarray(small, dtype=np.uint8))
        self.count += 1
        return self._tell() if self.count == self._num_returned + STEP + EDGE else []

    def end(self) -> list[float]:
        """What is left; the last frame stands for those after it."""
        returned: list[float] = []
        while self._num_returned < self.count:
            returned += self._tell()
        return returned

    def _tell(self) -> list[float]:
        import torch

        from nemo_vfm.models.transnet import EDGE, STEP, WINDOW, predict_windows

        numbers = range(self._num_returned - EDGE, self._num_returned - EDGE + WINDOW)
        window = [min(max(number, 0), self.count - 1) - self._first for number in numbers]
        frames_THWC = torch.from_numpy(np.stack(self._held))
        found = predict_windows(self._model, frames_THWC, [window])[: self.count - self._num_returned]
        self._num_returned += len(found)
        keep_from = max(0, min(self._num_returned, self.count) - EDGE)
        del self._held[: keep_from - self._first]
        self._first = keep_from
        assert len(found) == STEP or self._num_returned == self.count
        return [float(value) for value in found]


_MODELS: dict[tuple[Path, int], "TransNetV2"] = {}  # a process loads each file once; splitters are sent without it


def _file(weights: Path) -> Path:
    return weights / "model.safetensors" if weights.is_dir() else weights


def _model(weights: Path) -> "TransNetV2":
    from nemo_vfm.models.transnet import load_transnet

    file = _file(weights)
    key = file.absolute(), file.stat().st_mtime_ns if file.exists() else 0
    if key not in _MODELS:
        _MODELS[key] = load_transnet(weights)
    return _MODELS[key]
