"""Measures PSNR and SSIM of an autoencoder on held-out clips, and draws originals beside reconstructions.

Shape letters: B batch, C channels, T frames, H height, W width.
"""

from collections.abc import Iterable, Iterator
from contextlib import nullcontext

import torch
from torch import Tensor

from nemo_vfm.core import log, ranks
from nemo_vfm.core.bounds import frame_rate
from nemo_vfm.core.device import device
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.types.batch import Batch
from nemo_vfm.core.types.task import ModelInputs
from nemo_vfm.data.video.video_grid import write_grid
from nemo_vfm.metrics.video_quality import psnr, ssim
from nemo_vfm.models.autoencoder import CausalAutoencoder, split
from nemo_vfm.train.reconstruct.reconstruction_task import Reconstruct
from nemo_vfm.train.state.train_state import TrainState


def reconstruct(
    fit: TrainState, batches: Iterable[Batch], *, average: bool = True
) -> Iterator[tuple[ModelInputs, Tensor]]:
    """Each batch and what an autoencoder makes of it, without noise; by the averaged weights where asked, if any."""
    if not isinstance(fit.task, Reconstruct) or not isinstance(fit.model, CausalAutoencoder):
        raise UserError(f"reconstructions can be measured only for an autoencoder trained with Reconstruct; this is "
                        f"{type(fit.model).__name__} by {type(fit.task).__name__}")  # fmt: skip
    fit.model.eval()
    try:
        with torch.no_grad(), fit.ema.apply_to(fit.model) if fit.ema and average else nullcontext():
            for batch in batches:
                prepared = fit.task.prepare(batch.to(device()), seed=fit.run.seed, training=False)
                yield prepared, fit.model(**prepared.inputs).float()
    finally:
        fit.model.train()


class CompareReconstructions:
    """Adds val_psnr_db, val_ssim and each term of the loss as val_loss_of/<term>; writes reconstructions/step-<n>.png.

    Args:
        every_steps: optimizer steps between measurements; there is always one at the end.
        num_shown: clips in the picture, of the first held-out batch.
        fps: frames a second of the moving picture beside it.
    """

    def __init__(self, *, every_steps: int, num_shown: int = 4, fps: float = 6.0) -> None:
        if every_steps < 1 or num_shown < 1:
            raise ValueError(f"every_steps ({every_steps}) and num_shown ({num_shown}) must be above 0")
        self.every_steps, self.num_shown, self.fps = every_steps, num_shown, frame_rate(fps)

    def on_step(self, fit: TrainState) -> None:
        """Measure and draw where due."""
        if not fit.is_due(self.every_steps):
            return
        found: dict[str, list[Tensor]] = {}
        weights, shown = [], None
        for prepared, output in reconstruct(fit, fit.data.val_dataloader()):
            made, video = split(output, prepared.targets["video"])[0], prepared.targets["video"]
            assert isinstance(fit.task, Reconstruct)
            terms = {f"val_loss_of/{name}": value for name, value in fit.task.parts(output, prepared).items()}
            measures = {"val_psnr_db": psnr(made, video)}
            if min(video.shape[3:]) >= 11:
                measures["val_ssim"] = ssim(made, video)
            for name, value in {**measures, **terms}.items():
                found.setdefault(name, []).append(value.cpu())
            weights.append(prepared.weight_B.cpu())
            shown = torch.cat([video, made], dim=4)[: self.num_shown] if shown is None else shown
        if shown is None:
            log.warn_once("no clip is held out, so reconstructions are not measured; set data.val_fraction")
            return
        weight_B = torch.cat(weights)
        whole = weight_B.sum().clamp_min(1e-12)
        fit.metrics |= {name: float((torch.cat(one) * weight_B).sum() / whole) for name, one in found.items()}
        if ranks.is_first():
            bytes_BTHWC = ((shown.clamp(-1, 1) + 1) * 127.5).round().byte().permute(0, 2, 3, 4, 1).contiguous().cpu()
            write_grid(fit.run.folder / "reconstructions" / f"step-{fit.step:08d}", bytes_BTHWC.numpy(), self.fps)
