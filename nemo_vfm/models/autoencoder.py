"""Compresses video into latents and reconstructs it, by a causal autoencoder that is to be trained.

It follows Cosmos' continuous tokenizer (2501.03575, section 4.2): Haar wavelets first, then factorised convolutions
that see only the past, and the same way back. Departures: time is halved by pairing frames, not by a strided
convolution, so that a video can come in pieces of any length.
Shape letters: B batch, C channels, T frames, H height, W width, N numbers of a sample; T', H', W' of latents.
"""

from math import log2

import torch
from torch import Tensor, nn

from nemo_vfm.core.bounds import MAX_BLOCKS, MAX_WIDTH, require_between
from nemo_vfm.core.seed import generator
from nemo_vfm.models.blocks.causal_conv import Attention, Decoder, Encoder, Halving, Middle, Past, begins
from nemo_vfm.models.codec import WaveletCodec, latent_sides

_LOGVAR = (-30.0, 20.0)  # beyond, exp overflows or a gradient is lost
_HEAD_DIM = 32  # no argument: weights of another number would load without a word


class CausalAutoencoder(nn.Module):
    """`encoder` and `decoder`, whose levels are numbered from the pixels on: a deeper one adds numbers.

    A video of 1 + k `time` frames has 1 + k latent frames; the first stands for its first frame alone.

    Args:
        latent_channels: numbers a latent position.
        space: pixels along the height and the width of a latent position, a power of two.
        time: frames of a latent position, a power of two; 1 keeps every frame.
        width: channels right behind the wavelets; every level doubles them.
        widest: most channels of a level.
        blocks: residual blocks a level, and in the middle.
        wavelet_space: how many of the halvings of height and width the wavelets do.
        wavelet_time: how many of the halvings of time the wavelets do.
        attention: in the middle: none, within each frame, or also over the past of each position. It joins all
            positions of a frame, which then cannot be encoded in tiles.
        window: latent frames that a position looks at under space_time, its own included.
        variational: True lets the encoder give a mean and a variance, for a loss with a KL term; False a mean alone.
    """

    latent_mean: Tensor
    latent_std: Tensor
    latent_count: Tensor

    def __init__(
        self, *, latent_channels: int = 16, space: int = 8, time: int = 8, width: int = 64, widest: int = 512,
        blocks: int = 2, wavelet_space: int = 2, wavelet_time: int = 2, attention: Attention = "none",
        window: int = 4, variational: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        require_between(1, MAX_WIDTH, latent_channels=latent_channels, width=width, widest=widest, window=window)
        require_between(1, MAX_BLOCKS, blocks=blocks)
        in_space, in_time = _rest("space", space, wavelet_space), _rest("time", time, wavelet_time)
        # What each level halves. Time first: a deeper level that is added later halves space alone.
        halvings: list[Halving] = [(level < in_space, level < in_time) for level in range(max(in_space, in_time))]
        widths = [min(width << level, widest) for level in range(len(halvings) + 1)]
        if attention != "none" and widths[-1] % _HEAD_DIM:
            raise ValueError(f"the middle has {widths[-1]} channels, and attention needs a multiple of {_HEAD_DIM}")
        self.space, self.time, self.latent_channels, self.blocks = space, time, latent_channels, blocks
        self.attention, self.variational, self._halvings = attention, variational, halvings
        # These gains keep a still grey picture's lowest band at the picture's own value, the first frame's as well.
        self.wavelet = WaveletCodec(levels_space=wavelet_space, levels_time=wavelet_time,
                                   gain=2.0 ** -(wavelet_space + wavelet_time / 2),
                                   first_frame_gain=2.0 ** (wavelet_time / 2))  # fmt: skip
        channels = 3 * 4**wavelet_space * 2**wavelet_time
        middle = Middle(widths[-1], blocks, attention, window, widths[-1] // _HEAD_DIM)
        encoder_channels = latent_channels * (2 if variational else 1)
        self.encoder = Encoder(channels, encoder_channels, widths, halvings, blocks, middle)
        self.decoder = Decoder(latent_channels, channels, widths, halvings, blocks, middle)
        self.register_buffer("latent_mean", torch.zeros(latent_channels))
        self.register_buffer("latent_std", torch.ones(latent_channels))
        self.register_buffer("latent_count", torch.zeros((), dtype=torch.int64))

    def forward(self, video_BCTHW: Tensor, seeds_B: Tensor | None = None) -> Tensor:
        """Reconstruction, latents' means and log-variances in one row a sample, (B, N): see `split`.

        Args:
            video_BCTHW: pixels in [-1, 1].
            seeds_B: of the noise of a variational one, int64; None takes the mean.
        """
        mean, logvar = self.moments(video_BCTHW)
        latents = mean
        if self.variational and seeds_B is not None:
            noise = [torch.randn(mean.shape[1:], generator=generator(seed, "latent")) for seed in seeds_B.tolist()]
            latents = mean + (logvar / 2).exp() * torch.stack(noise).to(mean)
        parts = self.pixels(latents).float(), mean.float(), logvar.float()
        return torch.cat([part.flatten(1) for part in parts], dim=1)

    def moments(self, video_BCTHW: Tensor, past: Past | None = None) -> tuple[Tensor, Tensor]:
        """Means and log-variances of latents as they are, (B, C', T', H', W'); the latter 0 where not variational.

        The video is in [-1, 1]; its first piece has 1 + k `time` frames, later ones k `time`; without a past it is
        whole.
        """
        if begins(past):
            self.latent_shape(*video_BCTHW.shape[2:])
            bands = self.wavelet.encode(video_BCTHW)
        else:
            self.latent_shape(1 + video_BCTHW.shape[2], *video_BCTHW.shape[3:])
            bands = self.wavelet.encode(torch.cat([video_BCTHW[:, :, :1], video_BCTHW], dim=2))[:, :, 1:]
        found = self.encoder(bands.movedim(1, -1), past).movedim(-1, 1)
        if not self.variational:
            return found, torch.zeros_like(found)
        mean, logvar = found.chunk(2, dim=1)
        return mean, logvar.clamp(*_LOGVAR)

    def pixels(self, latents_BCTHW: Tensor, past: Past | None = None) -> Tensor:
        """The inverse of `moments`, as well as it has been learnt; not clamped."""
        bands = self.decoder(latents_BCTHW.movedim(1, -1), past).movedim(-1, 1).float()
        if begins(past):
            return self.wavelet.decode(bands)
        # The wavelets' first frame is one of its own kind: a stand-in takes its place and is dropped.
        return self.wavelet.decode(torch.cat([bands[:, :, :1], bands], dim=2))[:, :, 1:]

    def encode(self, video_BCTHW: Tensor, past: Past | None = None) -> Tensor:
        """Latents with mean 0 and deviation 1 in each channel, as far as they have been measured."""
        mean, _ = self.moments(video_BCTHW, past)
        if past is not None:
            past.has_started = True
        return (mean.float() - _along(self.latent_mean)) / _along(self.latent_std)

    def decode(self, latents_BCTHW: Tensor, past: Past | None = None) -> Tensor:
        """The way back of `encode`."""
        video = self.pixels(latents_BCTHW * _along(self.latent_std) + _along(self.latent_mean), past)
        if past is not None:
            past.has_started = True
        return video

    def latent_shape(self, num_frames: int, height: int, width: int) -> tuple[int, int, int, int]:
        """(C', T', H', W') for a video of this size; ValueError, which says what fits, where it does not."""
        what = f"an autoencoder of time {self.time} and space {self.space}"
        return self.latent_channels, *latent_sides(num_frames, height, width, self.time, self.space, what)

    def small_inputs(self) -> dict[str, tuple[int, ...]]:
        return {"video_BCTHW": (1, 3, 1 + self.time, 2 * self.space, 2 * self.space)}

    def reach(self) -> int | None:
        """Latent positions to each side that a position hangs on, in space; None where it hangs on all of them."""
        if self.attention != "none":
            return None
        side, reach = 1, 1  # in positions of the wavelets; the outermost convolution sees one to each side
        for halves_space, _ in self._halvings:
            reach += 2 * self.blocks * side
            side *= 2 if halves_space else 1
        return -(-(reach + (2 * self.blocks + 1) * side) // side)

    def made_of(self) -> str:
        """What it does with weights of these names and shapes."""
        shapes = {name: tuple(tensor.shape) for name, tensor in self.state_dict().items()}
        return f"{self.wavelet.fingerprint()} space={self.space} time={self.time} {self.attention} {shapes}"


def split(output_BN: Tensor, video_BCTHW: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What `forward` put into one row: reconstruction (like the video), means and log-variances (B, M) each."""
    numel = video_BCTHW[0].numel()
    mean_BM, logvar_BM = output_BN[:, numel:].chunk(2, dim=1)
    return output_BN[:, :numel].view_as(video_BCTHW), mean_BM, logvar_BM


def _along(values_C: Tensor) -> Tensor:
    return values_C[None, :, None, None, None]


def _rest(name: str, size: int, levels: int) -> int:
    """How many halvings the wavelets leave."""
    if size < 1 or size & (size - 1):
        raise ValueError(f"{name} must be a power of two, got {size}")
    rest = int(log2(size)) - levels
    if levels < 0 or rest < 0:
        raise ValueError(f"{name} {size} is {int(log2(size))} halvings, and wavelet_{name} {levels} of them cannot be")
    return rest
