"""Tests text-to-video: independence of the batch, guidance by its definition, and a model that memorizes."""

import pytest
import torch
from torch import nn

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.types.sample_batches import VideoBatch
from nemo_vfm.diffusion.denoising_task import Denoise
from nemo_vfm.diffusion.guidance import ClassifierFree
from nemo_vfm.diffusion.objective import EDM, FlowMatching
from nemo_vfm.diffusion.sampler import Euler, Heun
from nemo_vfm.diffusion.video_pipeline import TextToVideo
from nemo_vfm.models.codec import WaveletCodec
from nemo_vfm.models.dit import DiT
from nemo_vfm.models.text_encoder import HashedNgrams

CODEC, TEXT = WaveletCodec(levels_space=1), HashedNgrams(dim=16, max_tokens=4)
SIZE = {"num_frames": 2, "height": 8, "width": 8, "fps": 8.0, "seed": 0}


class Echo(nn.Module):
    """Predicts a uniform sample whose value is the sum of the first text token; records batch sizes."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))
        self.calls = []

    def forward(self, latents_BCTHW, noise_B, text_BLD, text_mask_BL, fps_B):
        self.calls.append(len(latents_BCTHW))
        level_B = text_BLD[:, 0].sum(1) / 16
        return torch.zeros_like(latents_BCTHW) + level_B.reshape(-1, 1, 1, 1, 1)


def pipeline(scale=1.0, sampler=None, objective=None, text_encoder=TEXT, negative_prompt="", **guidance):
    return TextToVideo(
        codec=CODEC, text_encoder=text_encoder, objective=objective or FlowMatching(prediction="sample"),
        sampler=sampler or Euler(steps=3), guidance=ClassifierFree(scale=scale, **guidance),
        negative_prompt=negative_prompt,
    )  # fmt: skip


def tiny(seed=0):
    torch.manual_seed(seed)
    model = DiT(in_channels=12, text_dim=16, width=48, depth=2, heads=2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model.eval()


@pytest.mark.parametrize("objective", [FlowMatching(), EDM()])
def test_a_prompt_gives_the_same_video_alone_and_in_a_batch(objective):
    model, draw = tiny(), pipeline(scale=2.0, sampler=Heun(steps=3), objective=objective)
    together = draw.generate(model, ["red ball", "blue box", "green"], **SIZE)
    alone = draw.generate(model, ["blue box"], **SIZE)
    assert together.shape == (3, 2, 8, 8, 3) and together.dtype == torch.uint8
    assert (together[1].int() - alone[0].int()).abs().max() <= 1
    assert (together[0].int() - together[1].int()).abs().max() > 10


@pytest.mark.parametrize(("size", "said"), [
    ({"height": 10}, "height 10 makes latents of 5, which the network cannot cut into patches of 2; use 8 or 12"),
    ({"width": 6}, "width 6 makes latents of 3, .*; use 4 or 8"), ({"height": 9}, "height 9 does not fit"),
])  # fmt: skip
def test_a_size_that_codec_or_network_does_not_take_is_told_in_pixels(size, said):
    with pytest.raises(UserError, match=said):
        pipeline().generate(tiny(), ["red ball"], **SIZE | size)


def test_different_prompts_start_from_different_noise():
    still = tiny()  # a velocity of zero everywhere: the video is the decoded noise, whatever the text
    for parameter in still.out.parameters():
        nn.init.zeros_(parameter)
    red, blue = pipeline(objective=FlowMatching()).generate(still, ["red", "blue"], **SIZE).float().flatten(1)
    assert abs(torch.corrcoef(torch.stack([red, blue]))[0, 1]) < 0.3


def test_equal_prompts_give_different_videos_and_their_repeats_can_be_named():
    model, draw = tiny(), pipeline()
    twice = draw.generate(model, ["red", "red"], **SIZE)
    assert (twice[0] != twice[1]).any()
    second = draw.generate(model, ["red"], repeats=[1], **SIZE)
    assert (second[0].int() - twice[1].int()).abs().max() <= 1
    other_seed = draw.generate(model, ["red"], **SIZE | {"seed": 1})
    assert (other_seed[0] != twice[0]).any()


@pytest.mark.parametrize(("scale", "batches"), [(1.0, [2, 2, 2]), (3.0, [4, 4, 4])])
def test_guidance_runs_both_texts_in_one_call_and_only_if_needed(scale, batches):
    model = Echo()
    pipeline(scale=scale).generate(model, ["red", "blue"], **SIZE)
    assert model.calls == batches


def test_the_scale_follows_the_usual_convention():
    cond, uncond = torch.tensor([3.0]), torch.tensor([1.0])
    assert [float(ClassifierFree(scale=s).combine(cond, uncond, 1.0)) for s in (0.0, 1.0, 2.0)] == [1.0, 3.0, 5.0]
    assert not ClassifierFree(scale=1.0).acts() and ClassifierFree(scale=0.0).acts()


def test_low_noise_levels_can_have_their_own_scale():
    guidance = ClassifierFree(scale=1.0, low_scale=3.0, low_below_sigma=0.875)
    assert [guidance.scale_at(sigma) for sigma in (1.0, 0.875, 0.8749, 0.0)] == [1.0, 1.0, 3.0, 3.0]
    cond, uncond = torch.tensor([3.0]), torch.tensor([1.0])
    assert float(guidance.combine(cond, uncond, 0.5)) == 7.0
    assert guidance.acts() and not guidance.acts_at(0.9) and guidance.acts_at(0.5)


def test_full_rescaling_gives_each_sample_the_deviation_of_its_conditional_estimate():
    torch.manual_seed(0)
    cond, uncond = (
        torch.randn(2, 3, 2, 4, 4) * torch.tensor([1.0, 5.0]).reshape(2, 1, 1, 1, 1),
        torch.randn(2, 3, 2, 4, 4),
    )
    plain, full, half = (ClassifierFree(scale=7.0, rescale=r).combine(cond, uncond, 1.0) for r in (0.0, 1.0, 0.5))
    torch.testing.assert_close(full.flatten(1).std(1), cond.flatten(1).std(1))
    torch.testing.assert_close(full / plain, (full / plain).flatten(1)[:, :1].reshape(2, 1, 1, 1, 1).expand_as(full))
    torch.testing.assert_close(half, (plain + full) / 2)


def test_guidance_is_applied_in_its_interval_and_steps_outside_cost_half():
    model = Echo()
    draw = pipeline(scale=3.0, sampler=Euler(steps=4), above_sigma=0.25, below_sigma=0.75)  # levels 1, 3/4, 1/2, 1/4
    draw.generate(model, ["red", "blue"], **SIZE)
    assert model.calls == [2, 4, 4, 2]


def test_outside_its_interval_guidance_is_the_conditional_model():
    never = pipeline(scale=3.0, above_sigma=2.0).generate(tiny(), ["red", "blue"], **SIZE)
    assert (never == pipeline(scale=1.0).generate(tiny(), ["red", "blue"], **SIZE)).all()


@pytest.mark.parametrize("changes", [
    {"scale": -1.0}, {"rescale": 1.5}, {"above_sigma": 0.5, "below_sigma": 0.4}, {"above_sigma": -0.1},
    {"low_scale": 3.0}, {"low_below_sigma": 0.5}, {"low_scale": -2.0, "low_below_sigma": 0.5},
])  # fmt: skip
def test_guidance_outside_its_range_is_refused(changes):
    with pytest.raises(ValueError, match=str(next(iter(changes.values())))):
        ClassifierFree(**changes)


class Growing:
    """A text encoder that pads to the longest text of a call; a text's first token says its length."""

    def encode(self, captions):
        length = max(1, *map(len, captions))
        text = torch.zeros(len(captions), length, 16)
        mask = torch.zeros(len(captions), length, dtype=torch.bool)
        for row, caption in enumerate(captions):
            text[row, 0], mask[row, : max(1, len(caption))] = len(caption) / 10, True
        return text, mask

    def text_shape(self):
        return 8, 16

    def fingerprint(self):
        return "growing"


@pytest.mark.parametrize("negative", ["", "blurred", "x"])
def test_guidance_leads_away_from_the_negative_prompt_however_long_it_is(negative):
    video = pipeline(scale=1.5, text_encoder=Growing(), negative_prompt=negative).generate(Echo(), ["red"], **SIZE)
    level = 0.3 + 0.5 * (0.3 - len(negative) / 10)
    expected = (CODEC.decode(torch.full((1, 12, 2, 4, 4), level)).clamp(-1, 1) + 1) * 127.5
    assert (video.float() - expected.round().permute(0, 2, 3, 4, 1)).abs().max() <= 1


def test_the_network_sees_the_whole_mask_of_a_long_negative_prompt():
    masks = []

    class Watching(Echo):
        def forward(self, latents_BCTHW, noise_B, text_BLD, text_mask_BL, fps_B):
            masks.append(text_mask_BL.sum(1).tolist())
            return super().forward(latents_BCTHW, noise_B, text_BLD, text_mask_BL, fps_B)

    pipeline(scale=2.0, text_encoder=Growing(), negative_prompt="blurred").generate(Watching(), ["red", "go"], **SIZE)
    assert masks == [[3, 2, 7, 7]] * 3


def test_a_negative_prompt_without_effect_is_refused():
    with pytest.raises(ValueError, match="negative_prompt 'blurred' has no effect at guidance scale 1"):
        pipeline(scale=1.0, negative_prompt="blurred")


@pytest.mark.parametrize("scale", [0.0, 1.0, 1.5])
def test_a_guided_video_lies_on_the_line_through_both_estimates(scale):
    (cond,), (uncond,) = (TEXT.encode([text])[0][:, 0].sum(1) / 16 for text in ("red", ""))
    video = pipeline(scale=scale).generate(Echo(), ["red"], **SIZE).float()
    level = CODEC.decode((uncond + scale * (cond - uncond)).expand(1, 12, 2, 4, 4))
    expected = ((level.clamp(-1, 1) + 1) * 127.5).round().permute(0, 2, 3, 4, 1)
    assert (video - expected).abs().max() <= 1


@pytest.mark.parametrize("objective", [
    pytest.param(FlowMatching(), id="velocity"),
    pytest.param(FlowMatching(prediction="sample"), id="sample", marks=pytest.mark.slow),  # trains again
    pytest.param(EDM(), id="edm", marks=pytest.mark.slow),
])  # fmt: skip
def test_a_small_model_memorizes_two_captioned_videos(objective):
    videos = torch.zeros(2, 3, 1, 8, 8, dtype=torch.uint8)
    videos[0, 0], videos[1, 2] = 255, 255  # red and blue
    keys = tuple("abcdefgh")
    batch = VideoBatch(
        index=0, keys=keys, captions=("red", "blue") * 4, weight_B=torch.ones(8), fps_B=torch.full((8,), 8.0),
        video_BCTHW=videos.repeat(4, 1, 1, 1, 1),
    )  # fmt: skip
    torch.manual_seed(0)
    model = DiT(in_channels=12, text_dim=16, width=48, depth=2, heads=2)
    task = Denoise(objective=objective, codec=CODEC, text_encoder=TEXT, text_dropout=0.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for index in range(120):
        batch.index = index
        prepared = task.prepare(batch, seed=0, training=True)
        loss = task.losses(model(**prepared.inputs), prepared).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    videos_BTHWC = pipeline(sampler=Heun(steps=8), objective=objective).generate(
        model.eval(), ["red", "blue"], **SIZE | {"num_frames": 1}
    )
    red, blue = videos_BTHWC.float().mean((1, 2, 3))
    assert red[0] > 180 and red[2] < 75 and blue[2] > 180 and blue[0] < 75
