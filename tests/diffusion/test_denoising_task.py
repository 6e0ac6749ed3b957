"""Tests that what is drawn for a sample depends on that sample alone."""

from dataclasses import replace

import pytest
import torch

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.latent_rows import unpack_latents
from nemo_vfm.core.types.sample_batches import TokenBatch, VideoBatch
from nemo_vfm.core.types.task import Task
from nemo_vfm.data.batching.packing import side_by_side
from nemo_vfm.diffusion.denoising_task import Denoise, empty_like
from nemo_vfm.diffusion.objective import EDM, FlowMatching
from nemo_vfm.diffusion.uncertainty_weighting import UncertaintyWeighted
from nemo_vfm.models.codec import WaveletCodec
from nemo_vfm.models.text_encoder import HashedNgrams

CODEC, TEXT = WaveletCodec(levels_space=1, levels_time=1), HashedNgrams(dim=16, max_tokens=4)
KEYS = tuple("abcdef")


def task(**changes):
    return Denoise(**{"objective": FlowMatching(), "codec": CODEC, "text_encoder": TEXT, "text_dropout": 0.5} | changes)


def batch(keys=KEYS, index=3):
    torch.manual_seed(0)
    everything = dict(zip(KEYS, torch.randint(0, 256, (6, 3, 3, 4, 4), dtype=torch.uint8), strict=True))
    return VideoBatch(
        index=index, keys=keys, captions=tuple(f"caption of {key}" for key in keys), weight_B=torch.ones(len(keys)),
        fps_B=torch.full((len(keys),), 8.0), video_BCTHW=torch.stack([everything[key] for key in keys]),
    )  # fmt: skip


@pytest.mark.parametrize("objective", [FlowMatching(), EDM()])
def test_noise_level_noise_and_dropout_of_a_sample_are_the_same_in_any_batch_layout(objective):
    whole = task(objective=objective).prepare(batch(), seed=1, training=True)
    parts = [task(objective=objective).prepare(batch(keys), seed=1, training=True) for keys in (("d",), ("f", "b"))]
    places = [[3], [5, 1]]
    for part, place in zip(parts, places, strict=True):
        for whole_side, part_side in (
            (whole.inputs, part.inputs),
            (whole.targets, part.targets),
            (whole.tags, part.tags),
        ):
            for name, value in part_side.items():
                torch.testing.assert_close(value, whole_side[name][place], rtol=0, atol=0)


@pytest.mark.parametrize(("seed", "index", "training"), [(2, 3, True), (1, 4, True), (1, 3, False)])
def test_another_seed_batch_number_or_phase_draws_other_noise(seed, index, training):
    reference = task().prepare(batch(), seed=1, training=True).targets
    other = task().prepare(batch(index=index), seed=seed, training=training).targets
    for name in ("noise", "sigma"):
        assert (reference[name] != other[name]).reshape(6, -1).any(1).all()


def test_samples_of_one_batch_get_different_noise():
    noise = task().prepare(batch(), seed=1, training=True).targets["noise"].flatten(1)
    assert (torch.corrcoef(noise) - torch.eye(6)).abs().max() < 0.5


def test_dropped_samples_carry_the_empty_text_and_their_share_is_as_asked():
    training = task(text_dropout=0.25)
    empty, empty_mask = TEXT.encode([""])
    dropped = 0
    for index in range(60):
        inputs = training.prepare(batch(index=index), seed=0, training=True).inputs
        is_empty = (inputs["text_BLD"] == empty).flatten(1).all(1)
        assert (inputs["text_mask_BL"][is_empty] == empty_mask).all()
        assert (inputs["text_mask_BL"][~is_empty].sum(1) == 3).all()
        dropped += int(is_empty.sum())
    assert 60 < dropped < 120


def test_no_text_is_dropped_without_training():
    inputs = task(text_dropout=1.0).prepare(batch(), seed=0, training=False).inputs
    torch.testing.assert_close(inputs["text_BLD"], TEXT.encode(batch().captions)[0])


def test_cached_latents_and_text_give_what_pixels_and_captions_give():
    plain = batch()
    text, mask = TEXT.encode(plain.captions)
    latents = CODEC.encode(plain.video_BCTHW.float() / 127.5 - 1)
    cached = replace(plain, video_BCTHW=None, latents_BCTHW=latents, text_BLD=text, text_mask_BL=mask)
    ours, theirs = (task().prepare(b, seed=5, training=True) for b in (plain, cached))
    for name, value in ours.inputs.items():
        torch.testing.assert_close(value, theirs.inputs[name], rtol=0, atol=0)


def test_inputs_and_loss_are_those_of_the_objective():
    assert isinstance(task(), Task)
    prepared = task().prepare(batch(), seed=0, training=True)
    clean, noise, sigma = (prepared.targets[name] for name in ("clean", "noise", "sigma"))
    torch.testing.assert_close(prepared.inputs["latents_BCTHW"], FlowMatching().add_noise(clean, noise, sigma))
    torch.testing.assert_close(prepared.tags["noise"], sigma)
    half = (noise - clean).to(torch.bfloat16)
    losses = task().losses(half, prepared)
    assert losses.dtype == torch.float32 and losses.shape == (6,) and losses.max() < 1e-4


@pytest.mark.parametrize("length", [2, 7])
def test_the_empty_text_takes_the_length_of_the_cached_texts(length):
    empty, mask = empty_like(TEXT, torch.zeros(3, length, 16))
    assert empty.shape == (1, length, 16) and mask.tolist() == [[True] + [False] * (length - 1)]


def test_a_dropout_above_one_is_refused():
    with pytest.raises(ValueError, match=r"text_dropout must lie in 0..1, got 1.5"):
        task(text_dropout=1.5)


SIZES = [(1, 4, 4), (3, 2, 2), (2, 4, 2)]


def packed():
    """Three samples of three sizes, alone and side by side."""
    torch.manual_seed(0)
    alone = [
        VideoBatch(3, (key,), torch.tensor([weight]), (f"caption of {key}",), torch.tensor([8.0]),
              latents_BCTHW=torch.randn(1, 4, *size))
        for key, weight, size in zip("abc", (1.0, 0.0, 2.0), SIZES, strict=True)
    ]  # fmt: skip
    return alone, side_by_side(3, alone)


@pytest.mark.parametrize("objective", [FlowMatching(), EDM(), UncertaintyWeighted(objective=EDM())])
def test_a_packed_sample_has_the_noise_level_noise_text_and_loss_that_it_has_alone(objective):
    alone, together = packed()
    whole = task(objective=objective).prepare(together, seed=1, training=True)
    parts = [task(objective=objective).prepare(one, seed=1, training=True) for one in alone]
    assert whole.inputs["sizes_N3"].tolist() == [list(size) for size in SIZES]
    assert len(set(whole.inputs["noise_B"].tolist())) == 3
    for name in ("noise_B", "text_BLD", "text_mask_BL", "fps_B"):
        assert torch.equal(whole.inputs[name], torch.cat([part.inputs[name] for part in parts]))
    channels = 5 if isinstance(objective, UncertaintyWeighted) else 4
    output = torch.randn(len(whole.inputs["latents_XC"]), channels)
    losses = task(objective=objective).losses(output, whole)
    seen = [unpack_latents(rows, SIZES) for rows in (whole.inputs["latents_XC"], whole.targets["noise"], output)]
    for n, (part, latents, noise, out) in enumerate(zip(parts, *seen, strict=True)):
        assert torch.equal(latents, part.inputs["latents_BCTHW"]) and torch.equal(noise, part.targets["noise"])
        assert losses[n] == task(objective=objective).losses(out, part)[0]
        assert torch.equal(whole.tags["noise"][n : n + 1], part.tags["noise"])


def test_a_mean_by_tokens_counts_samples_by_their_size_packed_or_not():
    alone, together = packed()
    assert task().prepare(together, seed=1, training=True).weight_B.tolist() == [1.0, 0.0, 2.0]
    by_token = task(mean="token")
    assert by_token.prepare(together, seed=1, training=True).weight_B.tolist() == [16.0, 0.0, 32.0]
    assert [float(by_token.prepare(one, seed=1, training=True).weight_B) for one in alone] == [16.0, 0.0, 32.0]
    with pytest.raises(ValueError, match="mean must be sample or token, got 'pack'"):
        task(mean="pack")


def test_tokens_are_refused():
    tokens = torch.zeros(1, 4, dtype=torch.int64)
    with pytest.raises(UserError, match="learns from videos or latents, but this data yields a TokenBatch"):
        task().prepare(TokenBatch(0, ("a",), torch.ones(1), tokens, tokens), seed=1, training=True)
