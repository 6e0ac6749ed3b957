"""Tests the parts of a model against their definitions."""

import pytest
import torch

from nemo_vfm.models.blocks import video_tokens
from nemo_vfm.models.blocks.layers import LayerNorm, LayerNorm1p, RMSNorm, rms_normalised, rotate
from nemo_vfm.models.dit import DiT
from nemo_vfm.models.gpt import GPT
from nemo_vfm.models.st_dit import STDiT


def scores(rope, grid, fps):
    """Attention logits between all pairs of equal vectors at the positions of a grid."""
    torch.manual_seed(0)
    q, k = (torch.randn(1, 1, 1, rope.head_dim).expand(1, grid[0] * grid[1] * grid[2], 1, -1) for _ in range(2))
    table = rope.table(grid, torch.tensor([fps]))
    return (rotate(q, *table) * 1.0)[0, :, 0] @ rotate(k, *table)[0, :, 0].T


def test_rotation_turns_each_pair_by_its_angle():
    rope = video_tokens.Rope(12)
    angles = rope.angles((2, 2, 2), torch.tensor([24.0]))[0]
    x = torch.randn(1, 8, 3, 12)
    pairs = torch.complex(x[..., :6], x[..., 6:]) * torch.polar(torch.ones_like(angles), angles)[None, :, None]
    expected = torch.cat([pairs.real, pairs.imag], dim=-1)
    torch.testing.assert_close(rotate(x, *rope.table((2, 2, 2), torch.tensor([24.0]))), expected)


def test_logits_depend_on_distances_only():
    logits = scores(video_tokens.Rope(24), (3, 1, 1), 24.0)
    torch.testing.assert_close(logits[0, 1], logits[1, 2])
    assert not torch.isclose(logits[0, 1], logits[0, 2])


def test_the_same_instant_has_the_same_angle_at_any_frame_rate():
    rope = video_tokens.Rope(24, base_fps=24.0)
    slow, fast = (rope.angles((n, 1, 1), torch.tensor([fps])) for n, fps in ((3, 12.0), (6, 24.0)))
    torch.testing.assert_close(slow[0], fast[0, ::2])


def test_frame_rates_may_differ_within_a_batch():
    rope = video_tokens.Rope(24)
    both = rope.angles((3, 2, 2), torch.tensor([24.0, 8.0]))
    torch.testing.assert_close(both[1:], rope.angles((3, 2, 2), torch.tensor([8.0])))
    assert not torch.allclose(both[0], both[1])


def test_axes_share_the_head_as_in_cosmos_and_change_only_their_own_angles():
    assert video_tokens.axis_dims(128) == (44, 42, 42)
    angles = video_tokens.Rope(12).angles((2, 2, 2), torch.tensor([24.0])).reshape(2, 2, 2, 6)
    changed = [(angles.select(axis, 1) - angles.select(axis, 0)).abs().amax((0, 1)) > 0 for axis in range(3)]
    assert [flags.tolist() for flags in changed] == [[i // 2 == axis for i in range(6)] for axis in range(3)]


def test_ntk_scale_slows_low_frequencies_by_the_scale_and_leaves_the_highest():
    plain, scaled = (video_tokens.Rope(48, scale=(s, 1.0, 1.0)).frequencies(0, torch.zeros(1)) for s in (1.0, 2.0))
    torch.testing.assert_close(scaled[0], plain[0])
    torch.testing.assert_close(scaled[-1] * 2, plain[-1])


def test_absolute_positions_differ_in_every_place_and_agree_between_sizes():
    positions = video_tokens.AbsolutePositions(width=48)
    vectors = positions((2, 3, 3))
    assert torch.cdist(vectors, vectors).add(100 * torch.eye(18)).min() > 0.1
    coarse, fine = positions((1, 3, 3)).reshape(3, 3, 48), positions((3, 9, 9)).reshape(3, 9, 9, 48)
    torch.testing.assert_close(coarse, fine[1, 1::3, 1::3])


def test_unpatch_undoes_the_cutting():
    embedding = video_tokens.PatchEmbedding(in_channels=3, width=3 * 2 * 2 * 4, patch=(2, 2, 4))
    with torch.no_grad():
        embedding.proj.weight.copy_(torch.eye(48))
        embedding.proj.bias.zero_()
    x = torch.randn(2, 3, 4, 6, 8)
    tokens = embedding(video_tokens.patches(x, (2, 2, 4)))
    torch.testing.assert_close(
        video_tokens.unpatch(tokens, video_tokens.grid_of(tuple(x.shape), (2, 2, 4)), (2, 2, 4)), x
    )


def test_norms_agree_with_torch():
    x = 5 * torch.randn(3, 7, 16) + 1
    norm, reference = RMSNorm(dim=16), torch.nn.RMSNorm(16, eps=1e-6)
    with torch.no_grad():
        reference.weight.uniform_()
        norm.weight.copy_(reference.weight)
    torch.testing.assert_close(norm(x), reference(x))
    torch.testing.assert_close(LayerNorm()(x), torch.nn.LayerNorm(16, eps=1e-6, elementwise_affine=False)(x))


@pytest.mark.parametrize(("ours", "theirs"), [
    (lambda: RMSNorm(dim=16), lambda: torch.nn.RMSNorm(16, eps=1e-6)),
    (lambda: rms_normalised, lambda: torch.nn.RMSNorm(16, eps=1e-6)),
    (LayerNorm, lambda: torch.nn.LayerNorm(16, eps=1e-6, elementwise_affine=False)),
    (lambda: LayerNorm1p(dim=16), lambda: torch.nn.LayerNorm(16, eps=1e-5)),
    (lambda: RMSNorm(dim=16, eps=0.1), lambda: torch.nn.RMSNorm(16, eps=0.1)),
    (lambda: LayerNorm1p(dim=16, eps=0.1), lambda: torch.nn.LayerNorm(16, eps=0.1)),
], ids=["rms", "rms function", "layer", "layer 1p", "rms given", "layer 1p given"])  # fmt: skip
def test_what_norms_add_to_the_variance_shows_on_small_numbers(ours, theirs):
    """1e-6 as Peebles and Xie, and Cosmos, have it; 1e-5 is Megatron's and torch's own."""
    x = 1e-3 * torch.randn(3, 7, 16)
    torch.testing.assert_close(ours()(x), theirs()(x))


def epsilons(model):
    return {type(one).__name__: one.eps for one in model.modules() if hasattr(one, "eps")}


def test_every_norm_of_a_model_has_the_eps_of_its_family():
    diffusion = {"in_channels": 4, "text_dim": 16, "width": 48, "depth": 2, "heads": 4, "modulation_rank": 4}
    assert epsilons(DiT(**diffusion)) == epsilons(STDiT(**diffusion)) == {"LayerNorm": 1e-6, "RMSNorm": 1e-6}
    language = {"vocab": 96, "width": 48, "depth": 2, "heads": 6, "mlp_hidden": 80, "groups": 2, "qk_norm": True}
    for eps, given in ((1e-5, {}), (1e-3, {"eps": 1e-3})):
        norms = [one.eps for one in GPT(**language, **given).modules() if hasattr(one, "eps")]
        assert norms == [eps] * (4 * 2 + 1)
        assert set(epsilons(GPT(**language, norm="layernorm1p", **given)).values()) == {eps}


def test_noise_levels_a_hundredth_apart_are_told_apart():
    vectors = torch.nn.functional.normalize(video_tokens.sinusoids(torch.linspace(0, 1, 101), 256))
    assert (vectors[1:] * vectors[:-1]).sum(1).max() < 0.99
    with pytest.raises(ValueError, match="cannot be split over three axes"):
        video_tokens.axis_dims(5)
