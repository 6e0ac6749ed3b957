"""Predicts two logits per tiny frame: whether a shot ends there, and whether it lies in a transition.

This is TransNet V2 (Soucek and Lokoc 2020, 2008.04838). Stacks of 3-D convolutions see 1, 2, 4 and 8 frames around.
Beside them each frame is compared with those up to 50 around it, by learned features and by colours. Modules have the
names of the authors' PyTorch checkpoint, so that `nemo-vfm convert` makes one that fits.
Shape letters: B batch, T frames, H height, W width, C colours (RGB) or channels, K neighbours, D width.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.sanitize import beginning

HEIGHT_PX, WIDTH_PX = 27, 48
WINDOW, STEP, EDGE = 100, 50, 25  # frames that are seen at once; of them the middle ones count
_REACH = 50  # neighbours on each side that a frame is compared with


class TransNetV2(nn.Module):
    """The published network; the defaults are the published sizes.

    Args:
        filters: channels of each dilation in the first stack; every further stack has twice as many.
        num_stacks: each halves height and width.
        width: of the last hidden layer.
        similarity_width: of either comparison's output.
    """

    def __init__(
        self, *, filters: int = 16, num_stacks: int = 3, width: int = 1024, similarity_width: int = 128,
    ) -> None:  # fmt: skip
        super().__init__()
        channels = [4 * filters << stack for stack in range(num_stacks)]
        inputs = [3, *channels[:-1]]
        self.SDDCNN = nn.ModuleList([_Stack(c_in, c_out) for c_in, c_out in zip(inputs, channels, strict=True)])
        self.frame_sim_layer = _Similarity(similarity_width, learned_from=sum(channels))
        self.color_hist_layer = _Similarity(similarity_width)
        pixels = (HEIGHT_PX >> num_stacks) * (WIDTH_PX >> num_stacks)
        self.fc1 = nn.Linear(channels[-1] * pixels + 2 * similarity_width, width)
        self.cls_layer1 = nn.Linear(width, 1)
        self.cls_layer2 = nn.Linear(width, 1)

    def forward(self, frames_BTHWC: Tensor) -> tuple[Tensor, Tensor]:
        """uint8 frames of 27 x 48 pixels to logits of "the last of its shot" and of "in a transition", (B, T) each."""
        x_BCTHW = frames_BTHWC.permute(0, 4, 1, 2, 3).float() / 255
        means = []
        for stack in self.SDDCNN:
            x_BCTHW = stack(x_BCTHW)
            means.append(x_BCTHW.mean(dim=(3, 4)))
        shown_BTD = x_BCTHW.permute(0, 2, 3, 4, 1).flatten(2)
        like_BTD = self.frame_sim_layer(torch.cat(means, dim=1).transpose(1, 2))
        coloured_BTD = self.color_hist_layer(histograms(frames_BTHWC))
        hidden_BTD = F.relu(self.fc1(torch.cat([coloured_BTD, like_BTD, shown_BTD], dim=2)))
        return self.cls_layer1(hidden_BTD).squeeze(2), self.cls_layer2(hidden_BTD).squeeze(2)


class _Stack(nn.Module):
    """Two blocks, the first one's output added to the second's, then a halving of the picture."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        filters = out_channels // 4
        self.DDCNN = nn.ModuleList([_DilatedBlock(in_channels, filters), _DilatedBlock(out_channels, filters)])

    def forward(self, x_BCTHW: Tensor) -> Tensor:
        first_BCTHW = F.relu(self.DDCNN[0](x_BCTHW))
        second_BCTHW = F.relu(self.DDCNN[1](first_BCTHW))
        return F.avg_pool3d(first_BCTHW + second_BCTHW, (1, 2, 2))


class _DilatedBlock(nn.Module):
    """Four views of the same frames, 1, 2, 4 and 8 frames apart, side by side."""

    def __init__(self, in_channels: int, filters: int) -> None:
        super().__init__()
        self.Conv3D_1 = _Separable(in_channels, filters, 1)
        self.Conv3D_2 = _Separable(in_channels, filters, 2)
        self.Conv3D_4 = _Separable(in_channels, filters, 4)
        self.Conv3D_8 = _Separable(in_channels, filters, 8)
        self.bn = nn.BatchNorm3d(4 * filters, eps=1e-3)

    def forward(self, x_BCTHW: Tensor) -> Tensor:
        views = (self.Conv3D_1, self.Conv3D_2, self.Conv3D_4, self.Conv3D_8)
        return cast(Tensor, self.bn(torch.cat([view(x_BCTHW) for view in views], dim=1)))


class _Separable(nn.Module):
    """3 x 3 pixels, then 3 frames `dilation` apart (Tran et al. 2018, 1711.11248)."""

    def __init__(self, in_channels: int, filters: int, dilation: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv3d(in_channels, 2 * filters, (1, 3, 3), padding=(0, 1, 1), bias=False),
            nn.Conv3d(2 * filters, filters, (3, 1, 1), dilation=(dilation, 1, 1), padding=(dilation, 0, 0), bias=False),
        )

    def forward(self, x_BCTHW: Tensor) -> Tensor:
        return cast(Tensor, self.layers(x_BCTHW))


class _Similarity(nn.Module):
    """What frames have in common with those around them, by their features or by what is learned of these."""

    def __init__(self, width: int, learned_from: int | None = None) -> None:
        super().__init__()
        self.projection = None if learned_from is None else nn.Linear(learned_from, 128)
        self.fc = nn.Linear(2 * _REACH + 1, width)

    def forward(self, features_BTD: Tensor) -> Tensor:
        compared_BTD = features_BTD if self.projection is None else self.projection(features_BTD)
        return F.relu(self.fc(around(F.normalize(compared_BTD, dim=2))))


def histograms(frames_BTHWC: Tensor) -> Tensor:
    """How many pixels fall into each of 8 x 8 x 8 RGB cells, (B, T, 512) float32."""
    cells = (frames_BTHWC >> 5).flatten(2, 3).long() @ torch.tensor([64, 8, 1], device=frames_BTHWC.device)
    counts = torch.zeros(*cells.shape[:2], 512, device=cells.device)
    return counts.scatter_add_(2, cells, torch.ones_like(cells, dtype=counts.dtype))


def around(vectors_BTD: Tensor) -> Tensor:
    """Each vector's products with those from 50 before it to 50 after it, (B, T, 101); 0 where there is none."""
    products_BTT = F.pad(vectors_BTD @ vectors_BTD.transpose(1, 2), (_REACH, _REACH))
    places = torch.arange(vectors_BTD.shape[1], device=vectors_BTD.device)[:, None]
    places_TK = places + torch.arange(2 * _REACH + 1, device=vectors_BTD.device)
    return products_BTT.gather(2, places_TK.expand(len(vectors_BTD), -1, -1))


def windows(num_frames: int) -> Iterator[list[int]]:
    """The frames of each window; its frames from `EDGE` to `EDGE + STEP` are the next `STEP` of the film.

    The first frame stands for those before the film and the last for those after it.
    """
    for first in range(0, num_frames, STEP):
        yield [min(max(first - EDGE + place, 0), num_frames - 1) for place in range(WINDOW)]


@torch.no_grad()
def predict(model: TransNetV2, frames_THWC: Tensor) -> Tensor:
    """How sure it is of each frame that a shot ends with it, 0 to 1, (T,)."""
    return predict_windows(model, frames_THWC, list(windows(len(frames_THWC))))[: len(frames_THWC)]


@torch.no_grad()
def predict_windows(model: TransNetV2, frames_THWC: Tensor, numbers: Sequence[Sequence[int]]) -> Tensor:
    """The same for the middles of these windows, one after another."""
    found = [torch.sigmoid(model(frames_THWC[list(window)][None])[0][0, EDGE : EDGE + STEP]) for window in numbers]
    return torch.cat(found) if found else torch.zeros(0)


def load_transnet(path: Path) -> TransNetV2:
    """The network with weights from a safetensors file, or from the folder that `nemo-vfm convert` made."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    file = path / "model.safetensors" if path.is_dir() else path
    if not file.is_file() or file.suffix != ".safetensors":
        raise UserError(
            f"there are no weights of TransNet V2 at {path}; expected a safetensors file or a folder with "
            f"model.safetensors, which `nemo-vfm convert transnetv2-pytorch-weights.pth DIR` makes"
        )
    with torch.device("meta"):
        model = TransNetV2()
    try:
        weights = load_file(file)
        model.load_state_dict(weights, assign=True)
    except (SafetensorError, RuntimeError) as error:
        # Mostly another model's file: of the hundreds of names that torch lists the first are enough.
        raise UserError(
            f"{file} does not hold the weights of TransNet V2 ({beginning(error, 160)} ...); "
            f"`nemo-vfm convert transnetv2-pytorch-weights.pth DIR` makes them"
        ) from error
    return model.float().eval()
