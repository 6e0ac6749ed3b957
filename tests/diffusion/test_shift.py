"""Tests shifts by size against their closed forms, the same in training and sampling."""

import math
from dataclasses import replace

import pytest
import torch

from nemo_vfm.core.types.sample_batches import VideoBatch
from nemo_vfm.diffusion.denoising_task import Denoise
from nemo_vfm.diffusion.objective import FlowMatching, Shift
from nemo_vfm.diffusion.shift import LinearShift, SqrtShift, tokens_of
from nemo_vfm.models.codec import WaveletCodec
from nemo_vfm.models.text_encoder import HashedNgrams

IMAGE, VIDEO = (1, 32, 32), (16, 88, 160)


@pytest.mark.parametrize(("size_THW", "patch", "tokens"), [
    (IMAGE, (1, 2, 2), 256), (VIDEO, (1, 2, 2), 56_320), ((3, 5, 4), (2, 2, 2), 2 * 3 * 2), ((4, 4, 4), (1, 1, 1), 64),
])  # fmt: skip
def test_tokens_are_counted_over_frames_rows_and_columns(size_THW, patch, tokens):
    assert tokens_of(size_THW, patch) == tokens


@pytest.mark.parametrize(
    ("size_THW", "mu"), [(IMAGE, 0.5), ((1, 128, 128), 1.15), ((1, 16, 16), 0.5 - 192 * 0.65 / 3840)]
)
def test_the_linear_rule_runs_through_its_two_points_and_goes_on_straight(size_THW, mu):  # fmt: skip
    assert isinstance(LinearShift(), Shift)
    assert LinearShift().factor(size_THW) == pytest.approx(math.exp(mu), rel=1e-12)
    other = LinearShift(low=0.3, high=0.7, low_tokens=64, high_tokens=1024)
    assert [other.factor((1, side, side)) for side in (16, 64)] == pytest.approx([math.exp(0.3), math.exp(0.7)])


def test_the_linear_rule_stops_where_it_was_not_meant_for():
    assert LinearShift().factor(VIDEO) == pytest.approx(20.0)
    assert LinearShift(most=1e9).factor(VIDEO) == pytest.approx(math.exp(0.5 + 0.65 * (56_320 - 256) / 3840))


@pytest.mark.parametrize(("size_THW", "factor"), [
    (IMAGE, 1.0), ((1, 256, 256), 3.0), ((4, 256, 256), 6.0), (VIDEO, 3 * math.sqrt(56_320 / 16_384)),
])  # fmt: skip
def test_the_square_root_rule_keeps_the_signal_to_noise_and_never_shifts_down(size_THW, factor):
    assert isinstance(SqrtShift(), Shift)
    assert SqrtShift().factor(size_THW) == pytest.approx(factor, rel=1e-12)


@pytest.mark.parametrize("size_THW", [IMAGE, VIDEO])
def test_draws_and_schedule_are_shifted_by_the_same_number(size_THW):
    rule, plain = FlowMatching(shift=LinearShift()), FlowMatching()
    e_mu = LinearShift().factor(size_THW)
    numbers = [torch.Generator().manual_seed(7) for _ in range(2)]
    drawn, before = (
        torch.stack([o.draw(n, size_THW) for _ in range(50)]) for o, n in zip((rule, plain), numbers, strict=True)
    )
    torch.testing.assert_close(drawn, e_mu / (e_mu + 1 / before - 1))
    levels, equal = rule.schedule(8, size_THW), plain.schedule(8, size_THW)
    torch.testing.assert_close(levels, torch.where(equal > 0, e_mu / (e_mu + 1 / equal - 1), 0.0))
    torch.testing.assert_close(FlowMatching(shift=e_mu).schedule(8, (1, 1, 1)), levels, rtol=0, atol=0)


def test_an_image_and_a_video_are_each_shifted_by_their_own_size():
    codec, text = WaveletCodec(levels_space=1), HashedNgrams(dim=16, max_tokens=4)
    image = VideoBatch(
        index=0, keys=("a",), captions=("red",), weight_B=torch.ones(1), fps_B=torch.full((1,), 8.0),
        latents_BCTHW=torch.zeros(1, 12, 1, 4, 4),
    )  # fmt: skip
    video = replace(image, latents_BCTHW=torch.zeros(1, 12, 8, 4, 4))
    drawn = []
    for shift in (1.0, SqrtShift(at_tokens=1, least=0.1)):
        task = Denoise(objective=FlowMatching(shift=shift), codec=codec, text_encoder=text)
        drawn.append([task.prepare(b, seed=0, training=True).targets["sigma"] for b in (image, video)])
    (plain, same), (of_image, of_video) = drawn
    torch.testing.assert_close(plain, same, rtol=0, atol=0)  # the draw is the sample's, only the shift is the size's
    for sigma, tokens in ((of_image, 4), (of_video, 32)):
        shift = 3 * math.sqrt(tokens)
        torch.testing.assert_close(sigma, shift * plain / (1 + (shift - 1) * plain))


@pytest.mark.parametrize(("rule", "changes"), [
    (LinearShift, {"low_tokens": 5000}), (LinearShift, {"high": 0.1}), (LinearShift, {"most": 1.5}),
    (LinearShift, {"patch": (1, 0, 2)}), (SqrtShift, {"scale": 0.0}), (SqrtShift, {"patch": (2, 2)}),
])  # fmt: skip
def test_settings_outside_their_range_are_refused(rule, changes):
    with pytest.raises(ValueError, match=str(next(iter(changes.values()))).strip("()")):
        rule(**changes)
