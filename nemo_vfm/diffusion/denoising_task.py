"""Defines the denoising task: prepares the network's inputs from a batch and computes each sample's loss.

Every sample's noise level, text dropout and noise come from its own generator, seeded by (seed, batch number, clip id).
The rank, the worker, the place in the batch, the other samples and packing do not change them.
Shape letters: B batch, C channels, T frames, H height, W width, L text tokens, D width of a text token, X positions of
one packed sample after another.
"""

import inspect
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.latent_rows import pack_latents, unpack_latents
from nemo_vfm.core.seed import generator
from nemo_vfm.core.types.batch import Batch
from nemo_vfm.core.types.encoders import Codec, TextEncoder, VideoPipeline
from nemo_vfm.core.types.sample_batches import PackedBatch, VideoBatch
from nemo_vfm.core.types.task import ModelInputs
from nemo_vfm.diffusion.frame_conditioning import FrameConditioning
from nemo_vfm.diffusion.objective import Objective

Videos = VideoBatch | PackedBatch


class Denoise:
    """The task of every diffusion model.

    What the data is asked for by name (`members`, such as actions) reaches the network as an argument of that name, as
    it is stored; floating numbers in fp32.

    Args:
        objective: path, noise levels and loss.
        codec: turns pixels into latents where a batch has pixels.
        text_encoder: embeds captions where a batch has no embeddings, and the empty text of dropout.
        text_dropout: share of training samples whose text is replaced by the empty one, for guidance.
        mean: what counts alike in the mean of a global batch: each sample, as where a batch has one shape, or each
            token, so that a video counts as much as all images of as many tokens. Packed or not, it is the same mean.
        frame_conditioning: how the network is conditioned on given frames, and how many each sample has. Given frames
            that replace noisy latents have no loss and do not count in a mean over tokens. None gives no frames.
    """

    def __init__(
        self, *, objective: Objective, codec: Codec, text_encoder: TextEncoder, text_dropout: float = 0.1,
        mean: Literal["sample", "token"] = "sample", frame_conditioning: FrameConditioning | None = None,
    ) -> None:  # fmt: skip
        _require_valid(text_dropout, mean)
        self.objective, self.codec, self.text_encoder = objective, codec, text_encoder
        self.text_dropout, self.mean, self.frame_conditioning = text_dropout, mean, frame_conditioning

    def prepare(self, batch: Batch, *, seed: int, training: bool) -> ModelInputs:
        """Noisy latents and text as the network's inputs; without training no text is dropped."""
        if not isinstance(batch, VideoBatch | PackedBatch):
            raise UserError(f"a diffusion model learns from videos or latents, but this data yields "
                            f"a {type(batch).__name__}; use video data")  # fmt: skip
        pixels, clean = self._pixels_and_latents(batch)
        device = clean[0].device
        text_BLD, mask_BL = batch.text_BLD, batch.text_mask_BL
        if text_BLD is None or mask_BL is None:
            text_BLD, mask_BL = self.text_encoder.encode(batch.captions)
        text_BLD, mask_BL = text_BLD.to(device).float(), mask_BL.to(device)
        samples = [self._noise_sample(batch, *sample, seed, training)
                   for sample in zip(batch.keys, clean, pixels, strict=True)]  # fmt: skip
        sigma_B = torch.cat([sample.sigma_B for sample in samples])
        dropped_B = torch.tensor([sample.drops_text for sample in samples], device=device)
        if bool(dropped_B.any()):
            empty, empty_mask = empty_like(self.text_encoder, text_BLD)
            text_BLD = torch.where(dropped_B[:, None, None], empty, text_BLD)
            mask_BL = torch.where(dropped_B[:, None], empty_mask, mask_BL)
        packed = isinstance(batch, PackedBatch)
        sizes = {"sizes_N3": torch.tensor(batch.sizes_THW)} if isinstance(batch, PackedBatch) else {}  # on the host
        weight_B = batch.weight_B
        if self.mean == "token":
            made = [sample.targets.get("made_BCTHW", torch.ones_like(sample.targets["clean_BCTHW"][:, :1]))
                    for sample in samples]  # fmt: skip
            weight_B = weight_B * torch.stack([one.sum() for one in made]).to(weight_B.device)
        members = {name: x.to(device, torch.float32 if x.is_floating_point() else x.dtype)
                   for name, x in batch.members.items()}  # fmt: skip
        return ModelInputs(
            inputs=_collate([sample.inputs for sample in samples], packed) | sizes | members
            | {"text_BLD": text_BLD, "text_mask_BL": mask_BL, "fps_B": batch.fps_B},
            targets={name.removesuffix("_BCTHW").removesuffix("_XC"): one
                     for name, one in _collate([sample.targets for sample in samples], packed).items()}
            | {"sigma": sigma_B},
            weight_B=weight_B,
            tags={"noise": self.objective.fraction(sigma_B)},
        )  # fmt: skip

    def member_objection(self, model: nn.Module, members: Collection[str], others: Collection[str]) -> str:
        """See `HandsMembers`. An argument with a default may be missing in some of the sources."""
        kind, arguments = type(model).__name__, inspect.signature(model.forward).parameters
        if any(one.kind is one.VAR_KEYWORD for one in arguments.values()):
            return ""
        for name in members:
            if name not in arguments:
                return (
                    f"samples come with {name}, but {kind} takes no argument of that name, only "
                    f"{', '.join(arguments)}; use a model that takes it, or leave {name} out of `members`"
                )
        for name in others:
            if name in arguments and arguments[name].default is inspect.Parameter.empty:
                return (
                    f"{kind} needs {name}, which other sources have and this one is not asked for; ask for it in "
                    f"`members` here, too, or give the argument {name} of the model a default"
                )
        return ""

    def losses(self, output: Tensor, prepared: ModelInputs) -> Tensor:
        """The objective's loss of each sample, (B,), in fp32 whatever the network computed in."""
        targets, sigma_B = prepared.targets, prepared.targets["sigma"]
        of = {"output": output.float(), **{name: one for name, one in targets.items() if name != "sigma"}}
        if "sizes_N3" not in prepared.inputs:
            return self.objective.losses(**of, sigma_B=sigma_B)
        sizes = prepared.tensors()["sizes_N3"].tolist()
        alone = zip(*(unpack_latents(rows_XC, sizes) for rows_XC in of.values()), strict=True)
        each = zip(alone, sigma_B[:, None], strict=True)
        return torch.cat(
            [self.objective.losses(**dict(zip(of, one, strict=True)), sigma_B=level) for one, level in each]
        )

    def _pixels_and_latents(self, batch: Videos) -> tuple[Sequence[Tensor | None], Sequence[Tensor]]:
        """Of each sample (C, T, H, W): pixels in [-1, 1], or None where the batch has latents, and clean latents."""
        if isinstance(batch, PackedBatch):
            latents = [one[0] for one in unpack_latents(batch.latents_XC.float(), batch.sizes_THW)]
            return [None] * len(batch), latents
        if batch.latents_BCTHW is not None:
            return [None] * len(batch), list(batch.latents_BCTHW.float())
        assert batch.video_BCTHW is not None, "a batch has latents or pixels"
        pixels_BCTHW = batch.video_BCTHW.float() / 127.5 - 1
        return list(pixels_BCTHW), list(self.codec.encode(pixels_BCTHW))

    def _noise_sample(
        self, batch: Batch, key: str, clean_CTHW: Tensor, video_CTHW: Tensor | None, seed: int, training: bool
    ) -> "_Sample":
        """The network's inputs and the loss's targets for one sample, by numbers from its own generator, in this order:
        noise level, whether the text is dropped, noise, and what concerns given frames.
        """
        numbers = generator(seed, "training" if training else "validation", batch.index, key)
        clean = clean_CTHW[None]
        sigma_B = self.objective.draw(numbers, clean_CTHW.shape[1:])[None].to(clean.device)
        drops_text = bool(torch.rand((), generator=numbers) < self.text_dropout) and training
        noise = torch.randn(clean_CTHW.shape, generator=numbers)[None].to(clean)
        noisy = self.objective.add_noise(clean, noise, sigma_B)
        targets = {"clean_BCTHW": clean, "noise_BCTHW": noise}
        if self.frame_conditioning is None:
            latents, level_B = self.objective.inputs(noisy, sigma_B)
            return _Sample({"latents_BCTHW": latents, "noise_B": level_B}, targets, sigma_B, drops_text)
        count, given_sigma = self.frame_conditioning.draw(numbers, clean_CTHW.shape[1])
        given = self.frame_conditioning.of_sample(count, clean_CTHW, video_CTHW, self.codec)
        given_noise = torch.randn(clean_CTHW.shape, generator=numbers)[None]
        given = replace(given, noise_BCTHW=given_noise, sigma_B=torch.tensor([given_sigma])).to(clean.device)
        known = self.frame_conditioning.given_mask(given)
        if known is not None:
            targets["made_BCTHW"] = (~known).to(clean).expand(-1, 1, -1, *clean.shape[3:])
        inputs = self.frame_conditioning.inputs(self.objective, noisy, sigma_B, given)
        return _Sample(inputs, targets, sigma_B, drops_text)


class FineTune(Denoise):
    """The task of a pretrained model: to denoise with the parts of the pipeline that samples from it.

    Args:
        pipeline: its objective, codec, text encoder and frame conditioning are those of the training.
        text_dropout: see `Denoise`.
        mean: see `Denoise`.
    """

    def __init__(
        self, *, pipeline: VideoPipeline, text_dropout: float = 0.1, mean: Literal["sample", "token"] = "sample"
    ) -> None:
        _require_valid(text_dropout, mean)
        self.pipeline, self.text_dropout, self.mean = pipeline, text_dropout, mean

    def __getattr__(self, name: str) -> Any:
        """Take a part from the pipeline when it is used, since a pipeline may read its folder late."""
        if name not in ("objective", "codec", "text_encoder", "frame_conditioning"):
            raise AttributeError(f"FineTune has no {name}")
        return getattr(self.pipeline, name)


def _require_valid(text_dropout: float, mean: str) -> None:
    if not 0 <= text_dropout <= 1:
        raise ValueError(f"text_dropout must lie in 0..1, got {text_dropout}")
    if mean not in ("sample", "token"):
        raise ValueError(f"mean must be sample or token, got {mean!r}")


@dataclass(frozen=True, slots=True)
class _Sample:
    """One sample of a batch, as a batch of one."""

    inputs: dict[str, Tensor]  #: of the network
    targets: dict[str, Tensor]  #: of the loss
    sigma_B: Tensor
    drops_text: bool


def _collate(samples: Sequence[Mapping[str, Tensor]], packed: bool) -> dict[str, Tensor]:
    """Samples as one batch; packed ones' latents are concatenated along positions, (X, C), and levels along samples."""
    joined = {}
    for name in samples[0]:
        own = [one[name] for one in samples]
        if packed and name.endswith("_BCTHW"):
            joined[name.replace("_BCTHW", "_XC")] = torch.cat([pack_latents(one) for one in own])
        else:
            joined[name] = torch.cat([one.flatten() for one in own] if packed and name == "noise_B" else own)
    return joined


def empty_like(text_encoder: TextEncoder, text_BLD: Tensor) -> tuple[Tensor, Tensor]:
    """The empty text as (1, L, D) and (1, L), with the length, dtype and device of `text_BLD`."""
    empty, mask = text_encoder.encode([""])
    length = text_BLD.shape[1]
    missing = max(length - empty.shape[1], 0)
    empty = torch.nn.functional.pad(empty, (0, 0, 0, missing))[:, :length]
    return empty.to(text_BLD), torch.nn.functional.pad(mask, (0, missing))[:, :length].to(text_BLD.device)
