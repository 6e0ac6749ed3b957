"""Encodes pixels to latents and back, with the weights of a trained autoencoder's run.

A large video is processed piece by piece or tile by tile, with the same result and less memory.
Shape letters: B batch, C channels, T frames, H height, W width.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from threading import Lock
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from nemo_vfm.core.errors import CorruptCheckpoint, UserError
from nemo_vfm.core.optional import needs_gpu
from nemo_vfm.core.storage.files import sha256_text
from nemo_vfm.core.storage.uri import local
from nemo_vfm.core.types.factory import Factory
from nemo_vfm.core.types.held_weights import HeldWeights
from nemo_vfm.models.autoencoder import CausalAutoencoder
from nemo_vfm.models.blocks.causal_conv import Past
from nemo_vfm.parallel.apply.build_model import build_model
from nemo_vfm.parallel.checkpoint.checkpoint import find, load_weights
from nemo_vfm.parallel.checkpoint.checkpoint_index import fingerprint, group_of
from nemo_vfm.parallel.checkpoint.checkpoint_manifest import read as read_manifest
from nemo_vfm.parallel.checkpoint.checkpoint_reader import fill
from nemo_vfm.parallel.plan.static_memory import on_meta

Apply: TypeAlias = Callable[[Tensor], Tensor]
Continue: TypeAlias = Callable[[Tensor, Past | None], Tensor]
#: Loaded models by fingerprint, once a process: codecs are sent between processes and hold settings only.
_LOADED: dict[str, CausalAutoencoder] = {}
_LOCK = Lock()  # threads encode side by side


@needs_gpu()
class TrainedAutoencoder:
    """A codec whose latents have mean 0 and deviation 1 in each channel, as far as the training's clips tell.

    Args:
        model: the autoencoder as it was trained; a checkpoint holds weights, and its shapes must be this model's.
        trained: the run folder of its training, a folder of checkpoints (the newest whole one is taken), or one.
        weights: which of its weights; None takes the averaged ones (ema) where there are some, else the model's own.
        frames_at_once: latent frames that go through the network together; it bounds the memory of long videos and
            changes no latent. None takes the whole video.
        tile: latent positions along a side that go through together, with as much around them as they hang on; it
            bounds the memory of large frames and changes no latent. None takes whole frames.
    """

    def __init__(
        self, *, model: Factory[[], CausalAutoencoder], trained: Path, weights: Literal["ema", "model"] | None = None,
        frames_at_once: int | None = 16, tile: int | None = None,
    ) -> None:  # fmt: skip
        if min(frames_at_once or 1, tile or 1) < 1 or 0 in (frames_at_once, tile):
            raise ValueError(f"frames_at_once ({frames_at_once}) and tile ({tile}) must be at least 1, or null")
        self.model, self.trained, self.weights = model, local(trained, "the training of an autoencoder"), weights
        self.frames_at_once, self.tile = frames_at_once, tile
        self._chosen: tuple[Path, str] | None = None
        if tile is not None and self._shape().reach() is None:
            raise ValueError("attention spans whole frames, so tiling is impossible: set tile: null")

    @torch.no_grad()
    def encode(self, video_BCTHW: Tensor) -> Tensor:
        """Pixels in [-1, 1] to latents, fp32."""
        model = self._load(video_BCTHW.device)
        model.latent_shape(*video_BCTHW.shape[2:])
        apply = partial(in_pieces, model.encode, first=1, step=model.time, count=self.frames_at_once)
        return in_tiles(apply, video_BCTHW.float(), self.tile, model.reach() or 0, inside=model.space, outside=1)

    @torch.no_grad()
    def decode(self, latents_BCTHW: Tensor) -> Tensor:
        """Latents to pixels, fp32, not clamped."""
        model = self._load(latents_BCTHW.device)
        apply = partial(in_pieces, model.decode, first=1, step=1, count=self.frames_at_once)
        return in_tiles(apply, latents_BCTHW.float(), self.tile, model.reach() or 0, inside=1, outside=model.space)

    def latent_shape(self, num_frames: int, height: int, width: int) -> tuple[int, int, int, int]:
        """(C', T', H', W'); ValueError where the size does not fit. No weights are read."""
        return self._shape().latent_shape(num_frames, height, width)

    def fingerprint(self) -> str:
        """The bytes of the weights and what the network does with them. Pieces and tiles do not count."""
        chosen, group = self._find_checkpoint()
        weights = fingerprint(read_manifest(chosen)["files"], group)
        return f"autoencoder/1 {sha256_text(f'{self._shape().made_of()} {weights}')[:32]}"

    def _shape(self) -> CausalAutoencoder:
        model = on_meta(self.model)
        assert isinstance(model, CausalAutoencoder)
        return model

    def _find_checkpoint(self) -> tuple[Path, str]:
        """Which checkpoint, and which of its weights; chosen once, even if the training goes on."""
        if self._chosen is None:
            chosen = find(self.trained)
            averaged = any(group_of(name) == "ema" for name in read_manifest(chosen)["files"])
            self._chosen = chosen, self.weights or ("ema" if averaged else "model")
        return self._chosen

    @torch.inference_mode(False)  # autograd refuses tensors that were made in it, and other callers get these, too
    def _load(self, device: torch.device) -> CausalAutoencoder:
        with _LOCK:
            key = self.fingerprint()
            if key in _LOADED:
                return _LOADED[key].to(device)
            chosen, group = self._find_checkpoint()
            model = build_model(self.model, seed=0)
            assert isinstance(model, CausalAutoencoder)
            try:
                fill(model.state_dict(), load_weights(chosen, group))
            except CorruptCheckpoint as error:
                raise UserError(f"The weights of {chosen} are not of this autoencoder: {error}") from error
            if not int(model.latent_count):
                raise UserError(
                    f"The latents of {chosen} were never measured, so their scale is not known; add the callback "
                    "nemo_vfm.train.reconstruct.latent_statistics.MeasureLatents to its training"
                )
            _LOADED[key] = model.eval().requires_grad_(False)
            return _LOADED[key].to(device)

    def offload(self) -> None:
        """Move the weights to the CPU."""
        with _LOCK:
            if (model := _LOADED.get(self.fingerprint())) is not None:
                model.to("cpu")

    def held_weights(self) -> HeldWeights:
        """See `HoldsWeights`; they are in fp32."""
        count = sum(parameter.numel() for parameter in self._shape().parameters())
        return HeldWeights(f"autoencoder {self.trained}", 4 * count)


def in_pieces(apply: Continue, x_BCTHW: Tensor, *, first: int, step: int, count: int | None) -> Tensor:
    """One piece of time after the other, each with the past that the earlier ones left.

    The first `first` frames make the first frame of the result, and each further `step` one more; `count` frames of the
    result are made at once, and all where it is None.
    """
    total = 1 + (x_BCTHW.shape[2] - first) // step
    if count is None or count >= total:
        return apply(x_BCTHW, None)
    past = Past()
    borders = [0, *(first + step * (last - 1) for last in range(count, total, count)), x_BCTHW.shape[2]]
    return torch.cat([apply(x_BCTHW[:, :, begin:end], past) for begin, end in pairwise(borders)], dim=2)


def in_tiles(apply: Apply, x_BCTHW: Tensor, side: int | None, halo: int, *, inside: int, outside: int) -> Tensor:
    """One tile of the frames after the other, each with a halo around it whose result is cut off.

    Tile and halo are in positions, whose result hangs on nothing beyond the halo; a position has a side of `inside`
    pixels of x and `outside` pixels of the result. Without a side, whole frames are taken.
    """
    if side is None:
        return apply(x_BCTHW)
    rows = []
    for top, bottom, above, below in _spans(x_BCTHW.shape[3] // inside, side, halo):
        row = []
        for left, right, before, behind in _spans(x_BCTHW.shape[4] // inside, side, halo):
            part = x_BCTHW[..., above * inside : below * inside, before * inside : behind * inside]
            cut_h = slice((top - above) * outside, (bottom - above) * outside)
            cut_w = slice((left - before) * outside, (right - before) * outside)
            row.append(apply(part)[..., cut_h, cut_w])
        rows.append(torch.cat(row, dim=4))
    return torch.cat(rows, dim=3)


def _spans(size: int, side: int, halo: int) -> Iterator[tuple[int, int, int, int]]:
    """Begin and end of each tile, then of what goes through with it."""
    for begin in range(0, size, side):
        end = min(begin + side, size)
        yield begin, end, max(begin - halo, 0), min(end + halo, size)
