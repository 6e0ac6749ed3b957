"""Tests how networks are told of given frames, in training and in sampling, for each way of telling."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image
from torch import nn

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.frame_count import LatentFrames, PixelFrames
from nemo_vfm.core.types.job import Run
from nemo_vfm.core.types.sample_batches import VideoBatch
from nemo_vfm.data.batching.packing import side_by_side
from nemo_vfm.diffusion.conditioning.in_channels import GivenInChannels
from nemo_vfm.diffusion.conditioning.in_time import GivenInTime
from nemo_vfm.diffusion.denoising_task import Denoise
from nemo_vfm.diffusion.frame_conditioning import FrameConditioning
from nemo_vfm.diffusion.guidance import ClassifierFree
from nemo_vfm.diffusion.noise_schedule import KarrasSigmas
from nemo_vfm.diffusion.objective import EDM, FlowMatching
from nemo_vfm.diffusion.sampler import Euler
from nemo_vfm.diffusion.uncertainty_weighting import UncertaintyWeighted
from nemo_vfm.diffusion.video_pipeline import TextToVideo
from nemo_vfm.models.codec import WaveletCodec
from nemo_vfm.models.text_encoder import HashedNgrams
from nemo_vfm.synth.prompts import PromptList
from nemo_vfm.train.callbacks import preview

CODEC, TEXT = WaveletCodec(levels_space=1, levels_time=1), HashedNgrams(dim=16, max_tokens=4)
TWO = GivenInTime(least=LatentFrames(2), most=LatentFrames(2), level=1e-4)
FRAMES, LATENT_FRAMES = 9, 5


def task(conditioning: FrameConditioning | None, **changes) -> Denoise:
    settings = {"objective": FlowMatching(), "codec": CODEC, "text_encoder": TEXT, "text_dropout": 0.0}
    return Denoise(**{**settings, "frame_conditioning": conditioning, **changes})


def batch(count: int = 4, frames: int = FRAMES) -> VideoBatch:
    torch.manual_seed(0)
    video = torch.randint(0, 256, (count, 3, frames, 8, 8), dtype=torch.uint8)
    keys = tuple("abcdefgh"[:count])
    return VideoBatch(3, keys, torch.ones(count), keys, torch.full((count,), 8.0), video_BCTHW=video)


def clean_of(one: VideoBatch) -> torch.Tensor:
    return CODEC.encode(one.video_BCTHW.float() / 127.5 - 1)


def test_given_frames_are_clean_and_carry_their_own_level_and_mark() -> None:
    prepared = task(TWO).prepare(batch(), seed=1, training=True)
    inputs, clean = prepared.inputs, clean_of(batch())
    torch.testing.assert_close(inputs["latents_BCTHW"][:, :, :2], clean[:, :, :2])
    noisy = FlowMatching().add_noise(clean, prepared.targets["noise"], prepared.targets["sigma"])
    torch.testing.assert_close(inputs["latents_BCTHW"][:, :, 2:], noisy[:, :, 2:])
    assert inputs["noise_B"].shape == (4, LATENT_FRAMES)
    assert (inputs["noise_B"][:, :2] == 1e-4).all()
    assert torch.equal(inputs["noise_B"][:, 2:], prepared.targets["sigma"][:, None].expand(-1, 3))
    assert torch.equal(inputs["condition_BCTHW"], (torch.arange(LATENT_FRAMES) < 2).float()[None, None, :, None, None]
                       .expand(4, 1, -1, 4, 4))  # fmt: skip


def test_the_drawn_level_of_given_frames_has_the_mean_and_the_spread_that_are_asked_for() -> None:
    for mean, std in ((-3.0, 2.0), (-1.0, 0.25)):
        way, numbers = GivenInTime(sigma_log_mean=mean, sigma_log_std=std), torch.Generator().manual_seed(0)
        logs = torch.tensor([way.draw(numbers, 9)[1] for _ in range(2000)]).log()
        assert float(logs.mean()) == pytest.approx(mean, abs=0.1 * std) and float(logs.std()) == pytest.approx(
            std, rel=0.1
        )


def test_a_network_without_a_mark_is_given_none() -> None:
    marked, bare = (
        task(GivenInTime(mask=mask)).prepare(batch(), seed=1, training=True).inputs for mask in (True, False)
    )
    assert marked.keys() - bare.keys() == {"condition_BCTHW"}


@pytest.mark.parametrize("objective", [FlowMatching(), EDM(), UncertaintyWeighted(objective=EDM())])
def test_given_frames_have_no_loss(objective) -> None:
    one = task(TWO, objective=objective)
    prepared = one.prepare(batch(), seed=1, training=True)
    channels = prepared.targets["clean"].shape[1] + isinstance(objective, UncertaintyWeighted)
    output = torch.randn(4, channels, LATENT_FRAMES, 4, 4)
    other = output.clone()
    other[:, : prepared.targets["clean"].shape[1], :2] += 100
    assert torch.equal(one.losses(output, prepared), one.losses(other, prepared))
    other[:, :, 2:] += 0.1
    assert (one.losses(output, prepared) != one.losses(other, prepared)).all()


def test_the_loss_is_the_mean_over_the_frames_that_were_made() -> None:
    one, plain = task(TWO), task(None)
    prepared, whole = (each.prepare(batch(), seed=1, training=True) for each in (one, plain))
    output = torch.randn(4, 24, LATENT_FRAMES, 4, 4)
    part = {name: tensor if name == "sigma" else tensor[:, :, 2:] for name, tensor in whole.targets.items()}
    expected = FlowMatching().losses(output[:, :, 2:], part["clean"], part["noise"], part["sigma"])
    torch.testing.assert_close(one.losses(output, prepared), expected)


def test_noise_and_levels_of_a_sample_are_those_it_has_without_given_frames() -> None:
    given, plain = (task(each).prepare(batch(), seed=1, training=True).targets for each in (TWO, None))
    for name in ("clean", "noise", "sigma"):
        assert torch.equal(given[name], plain[name])


def test_a_mean_over_tokens_counts_those_that_were_made() -> None:
    weights = [task(each, mean="token").prepare(batch(), seed=1, training=True).weight_B for each in (TWO, None)]
    assert torch.equal(weights[0] * LATENT_FRAMES, weights[1] * 3)


@pytest.mark.parametrize("conditioning", [TWO, GivenInTime(sigma=0.1, level=None)], ids=["levels", "one level"])
@pytest.mark.parametrize("objective", [FlowMatching(), EDM()])
def test_a_packed_sample_is_given_what_it_is_given_alone(conditioning, objective) -> None:
    torch.manual_seed(0)
    sizes = [(3, 4, 4), (4, 2, 2), (2, 4, 2)]
    alone = [
        VideoBatch(3, (key,), torch.ones(1), (f"caption of {key}",), torch.tensor([8.0]),
                   latents_BCTHW=torch.randn(1, 4, *size))
        for key, size in zip("abc", sizes, strict=True)
    ]  # fmt: skip
    one = task(conditioning, objective=objective, mean="token")
    whole = one.prepare(side_by_side(3, alone), seed=1, training=True)
    parts = [one.prepare(each, seed=1, training=True) for each in alone]
    rows = [part.inputs["latents_BCTHW"].movedim(1, -1).flatten(0, 3) for part in parts]
    assert torch.equal(whole.inputs["latents_XC"], torch.cat(rows))
    assert torch.equal(whole.inputs["noise_B"], torch.cat([part.inputs["noise_B"].flatten() for part in parts]))
    assert torch.equal(whole.inputs["condition_XC"].sum(), sum(part.inputs["condition_BCTHW"].sum() for part in parts))
    assert torch.equal(whole.weight_B, torch.cat([part.weight_B for part in parts]))
    output = torch.randn(len(whole.inputs["latents_XC"]), 4)
    losses, begin = one.losses(output, whole), 0
    for number, part in enumerate(parts):
        shape = part.inputs["latents_BCTHW"].shape
        count = shape[2] * shape[3] * shape[4]
        own = output[begin : begin + count].reshape(1, *shape[2:], -1).movedim(-1, 1)
        torch.testing.assert_close(losses[number], one.losses(own, part)[0])
        begin += count


def test_how_many_frames_are_given_is_drawn_from_min_to_most_and_none_as_often_as_asked() -> None:
    conditioning = GivenInTime(least=LatentFrames(1), most=LatentFrames(3), none_given=0.25)
    counts = [conditioning.draw(torch.Generator().manual_seed(n), 5)[0] for n in range(400)]
    share = [counts.count(n) / 400 for n in range(5)]
    assert share[4] == 0 and 0.18 < share[0] < 0.32 and all(0.18 < one < 0.32 for one in share[1:4])
    short = [
        GivenInTime(least=LatentFrames(3), most=LatentFrames(3)).draw(torch.Generator(), frames)[0] for frames in (1, 2)
    ]
    assert short == [0, 1], "at least one frame is left to make"


def test_noise_on_given_frames_is_log_normal_in_training() -> None:
    conditioning = GivenInTime(sigma=0.001, sigma_log_mean=-3.0, sigma_log_std=2.0, level=None)
    logs = torch.tensor([conditioning.draw(torch.Generator().manual_seed(n), 5)[1] for n in range(400)]).log()
    assert abs(logs.mean() + 3) < 0.3 and abs(logs.std() - 2) < 0.2


def test_given_frames_with_noise_are_a_point_of_the_path_at_their_own_level() -> None:
    conditioning = GivenInTime(least=LatentFrames(2), most=LatentFrames(2), sigma=0.5, level=None)
    prepared = task(conditioning, objective=EDM()).prepare(batch(), seed=1, training=True)
    shown, clean = prepared.inputs["latents_BCTHW"][:, :, :2], clean_of(batch())[:, :, :2]
    noise = (shown * (0.5**2 + 0.5**2) ** 0.5 - clean) / 0.5
    assert abs(noise.std() - 1) < 0.1 and abs(noise.mean()) < 0.1
    assert (noise - prepared.targets["noise"][:, :, :2]).std() > 1, "noise of its own"
    assert prepared.inputs["noise_B"].shape == (4,)


def test_channels_say_which_pixel_frames_are_given_and_hold_a_video_that_is_grey_after_them() -> None:
    one = task(GivenInChannels(frames=PixelFrames(3)))
    prepared = one.prepare(batch(), seed=1, training=True)
    condition = prepared.inputs["condition_BCTHW"]
    assert condition.shape == (4, 2 + 24, LATENT_FRAMES, 4, 4)  # two pixel frames a latent frame
    assert condition[0, :2, :, 0, 0].tolist() == [[1, 1, 0, 0, 0], [1, 1, 0, 0, 0]]
    grey = batch().video_BCTHW.float() / 127.5 - 1
    grey[:, :, 3:] = 0
    torch.testing.assert_close(condition[:, 2:], CODEC.encode(grey))
    assert "made" not in prepared.targets, "all frames have a loss"
    assert torch.equal(
        prepared.inputs["latents_BCTHW"], task(None).prepare(batch(), seed=1, training=True).inputs["latents_BCTHW"]
    )


def test_channels_cannot_be_had_from_latents_alone() -> None:
    cached = replace(batch(), video_BCTHW=None, latents_BCTHW=clean_of(batch()))
    with pytest.raises(UserError, match="the data holds only latents; use data with pixels"):
        task(GivenInChannels()).prepare(cached, seed=1, training=True)


class Level(nn.Module):
    """Predicts a sample of zeros and records its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))
        self.received: list[dict[str, torch.Tensor]] = []

    def forward(self, **inputs) -> torch.Tensor:
        self.received.append(inputs)
        return torch.zeros_like(inputs["latents_BCTHW"])


def pipeline(conditioning: FrameConditioning | None, scale: float = 2.0) -> TextToVideo:
    return TextToVideo(
        codec=CODEC, text_encoder=TEXT, objective=FlowMatching(prediction="sample"), sampler=Euler(steps=3),
        guidance=ClassifierFree(scale=scale), frame_conditioning=conditioning,
    )  # fmt: skip


SIZE = {"num_frames": FRAMES, "height": 8, "width": 8, "fps": 8.0, "seed": 0}


def clip(frames: int, seed: int = 1) -> torch.Tensor:
    return torch.randint(0, 256, (frames, 8, 8, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def test_each_video_of_a_batch_begins_with_its_own_given_frames() -> None:
    model, clips = Level(), [clip(3), None, clip(1, seed=2)]
    video = pipeline(TWO).generate(model, ["a", "b", "c"], given=clips, **SIZE)
    for row, given in zip(video, clips, strict=True):
        count = 0 if given is None else len(given)
        assert count == 0 or (row[:count].int() - given.int()).abs().max() <= 1
        assert (row[count:].int() - 128).abs().max() <= 1, "the network predicts grey"
    received = model.received[-1]
    assert received["condition_BCTHW"][:, 0, :, 0, 0].sum(1).tolist() == [2, 0, 1] * 2, "with and without the text"
    assert (received["noise_B"][:3] == 1e-4).sum(1).tolist() == [2, 0, 1]


def test_each_video_of_a_preview_begins_with_its_image(tmp_path, monkeypatch) -> None:
    drawn: list[torch.Tensor] = []
    monkeypatch.setattr(preview, "write_grid", lambda _, videos, __: drawn.append(torch.from_numpy(videos)))
    for name, colour in (("a.png", 40), ("b.png", 200)):
        Image.new("RGB", (12, 8), (colour,) * 3).save(tmp_path / name)
    sizes = {"every_steps": 1, "num_frames": FRAMES, "height_px": 8, "width_px": 8, "fps": 8.0}
    fit: Any = SimpleNamespace(is_due=lambda _: True, model=Level(), ema=None, run=Run(tmp_path), step=1)
    for given in (["a.png", "b.png"], ["a.png"]):
        pictures = [tmp_path / name for name in given]
        preview.Preview(pipeline=pipeline(TWO), prompts=["x", "y"], given=pictures, **sizes).on_step(fit)
    first = [video[:, 0].float().mean((1, 2, 3)).round().tolist() for video in drawn]
    assert first == [[40, 200], [40, 40]]
    source = PromptList(texts=["x", "y"])
    preview.Preview(pipeline=pipeline(TWO), prompts=source, given=pictures, **sizes).on_step(fit)
    assert (drawn[-1] == drawn[-2]).all(), "a source of prompts gives the same as its texts"
    with pytest.raises(ValueError, match="give one for all prompts of a source"):
        preview.Preview(pipeline=pipeline(TWO), prompts=source, given=[tmp_path] * 2, **sizes)
    with pytest.raises(ValueError, match="given has 3 files for 2 prompts"):
        preview.Preview(pipeline=pipeline(TWO), prompts=["x", "y"], given=[tmp_path] * 3, **sizes)


def test_the_inputs_of_a_video_do_not_depend_on_the_rest_of_the_batch() -> None:
    received = []
    for texts, clips in ((["a", "b"], [clip(3), clip(1)]), (["b"], [clip(1)])):
        model = Level()
        pipeline(GivenInTime(sigma=0.3, level=None)).generate(model, texts, given=clips, **SIZE)
        received.append(model.received[0]["latents_BCTHW"][len(texts) - 1])
    assert torch.equal(*received)


def test_noise_on_given_frames_differs_between_prompts() -> None:
    model = Level()
    pipeline(GivenInTime(sigma=0.3, level=None)).generate(model, ["a", "b"], given=[clip(3), clip(3)], **SIZE)
    first, second = model.received[0]["latents_BCTHW"][:2, :, :2]
    assert (first - second).std() > 0.3


def test_a_schedule_that_ends_above_zero_does_not_scale_down_the_latents() -> None:
    """With a constant prediction, the final state is (1 - sigma) of it plus noise of sigma."""

    class Constant(Level):
        def forward(self, **inputs) -> torch.Tensor:
            return torch.full_like(inputs["latents_BCTHW"], 3.0)

    draw = TextToVideo(
        codec=CODEC, text_encoder=TEXT, objective=FlowMatching(prediction="sample"), sampler=Euler(steps=6),
        guidance=ClassifierFree(scale=1.0),
        noise_schedule=KarrasSigmas(sigma_max=80.0, sigma_min=0.5, flow=True, ends_at_zero=False),
    )  # fmt: skip
    noise = torch.randn(1, 24, 5, 4, 4, generator=torch.Generator().manual_seed(0))
    latents = draw.latents(Constant(), ["a"], noise, fps=8.0)
    assert latents.mean() == pytest.approx(3.0, abs=0.1) and latents.std() == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize(("conditioning", "given", "said"), [
    (None, clip(1), "the pipeline has no frame_conditioning"),
    (TWO, clip(FRAMES), "expected fewer than 9 frames"),
    (TWO, clip(1)[:, :4], r"expected fewer than 9 frames of shape \(8, 8, 3\)"),
    (TWO, clip(2), "2 frames do not fit a codec with levels_time 1"),
    (GivenInChannels(), None, "this network starts from an image, but none is given"),
])  # fmt: skip
def test_invalid_given_frames_are_refused(conditioning, given, said) -> None:
    with pytest.raises(ValueError, match=said):
        pipeline(conditioning).generate(Level(), ["a"], given=[given], **SIZE)
    with pytest.raises(ValueError, match="given has 2 entries for 1 prompts"):
        pipeline(TWO).generate(Level(), ["a"], given=[None, None], **SIZE)


@pytest.mark.parametrize("make", [
    lambda: GivenInTime(least=LatentFrames(3), most=LatentFrames(2)), lambda: GivenInTime(none_given=1.5),
    lambda: GivenInTime(sigma=-1.0), lambda: GivenInChannels(frames=PixelFrames(0)),
    lambda: GivenInChannels(none_given=-0.1),
])  # fmt: skip
def test_impossible_numbers_are_refused(make) -> None:
    with pytest.raises(ValueError, match=r"must|expected"):
        make()
