"""Tests that TransNet gives the published network's numbers, and that its windows cover every video."""

import sys
import zlib

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from nemo_vfm.core.errors import UserError
from nemo_vfm.models.transnet import EDGE, STEP, WINDOW, TransNetV2, around, histograms, load_transnet, windows
from tests.support import preloaded

PLACES = [0, 1, 29, 30, 31, 44, 45, 59]
# What the authors' PyTorch code (inference-pytorch, 2026-11) gives for `seeded` and `frames`, at PLACES.
LAST_OF_SHOT = [7.5929, 6.8621, 6.7027, 6.2971, 7.4175, 11.9386, 13.948, 5.3254]
IN_TRANSITION = [-2.2345, -7.9453, -6.297, -6.5847, -7.2652, -6.8408, -6.6339, -1.9049]


def seeded(model: torch.nn.Module) -> torch.nn.Module:
    """Weights from each name, so that another program can make the same."""
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            random = np.random.default_rng(zlib.crc32(name.encode()))
            if name.endswith("num_batches_tracked"):
                continue
            if name.endswith("running_var"):
                values = random.uniform(0.5, 2, tensor.shape)
            elif name.endswith("bn.weight"):
                values = random.uniform(0.5, 1.5, tensor.shape)
            elif tensor.ndim > 1:
                values = random.standard_normal(tensor.shape) * (2 / np.prod(tensor.shape[1:])) ** 0.5
            else:
                values = random.standard_normal(tensor.shape) * 0.3
            tensor.copy_(torch.from_numpy(values))
    return model.eval()


@pytest.fixture(scope="module")
def model() -> TransNetV2:
    return seeded(TransNetV2())


@pytest.fixture(scope="module")
def frames() -> torch.Tensor:
    """Noise that gets darker, then red."""
    frames = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (1, 60, 27, 48, 3), dtype=np.uint8))
    frames[:, 30:] //= 3
    frames[:, 45:, :, :, 0] = 200
    return frames


@torch.no_grad()
def test_the_published_networks_numbers_come_out(model, frames):
    last, inside = model(frames)
    assert last[0, PLACES].tolist() == pytest.approx(LAST_OF_SHOT, abs=2e-3)
    assert inside[0, PLACES].tolist() == pytest.approx(IN_TRANSITION, abs=2e-3)


def test_names_and_sizes_are_those_of_the_published_checkpoint():
    sizes = {name: tuple(value.shape) for name, value in TransNetV2().state_dict().items()}
    assert sizes["SDDCNN.0.DDCNN.0.Conv3D_1.layers.0.weight"] == (32, 3, 1, 3, 3)
    assert sizes["SDDCNN.2.DDCNN.1.Conv3D_8.layers.1.weight"] == (64, 128, 3, 1, 1)
    assert sizes["SDDCNN.1.DDCNN.0.bn.running_mean"] == (128,)
    assert sizes["frame_sim_layer.projection.weight"] == (128, 448) and sizes["color_hist_layer.fc.weight"] == (
        128,
        101,
    )
    assert sizes["fc1.weight"] == (1024, 4864) and sizes["cls_layer2.bias"] == (1,)


def test_every_frame_is_compared_with_its_neighbours_and_zeros_beyond_the_ends():
    vectors = torch.randn(1, 70, 3, generator=torch.Generator().manual_seed(0))
    near = around(vectors)
    for t in (0, 13, 69):
        for k in (0, 49, 50, 51, 100):
            other = t + k - 50
            expected = float(vectors[0, t] @ vectors[0, other]) if 0 <= other < 70 else 0.0
            assert float(near[0, t, k]) == pytest.approx(expected, abs=1e-6)


def test_colours_are_counted_in_cells_of_32_levels():
    frames = torch.zeros(1, 1, 27, 48, 3, dtype=torch.uint8)
    frames[0, 0, 0, :2] = torch.tensor([255, 32, 31], dtype=torch.uint8)
    counts = histograms(frames)[0, 0]
    assert counts[7 * 64 + 1 * 8 + 0] == 2 and counts[0] == 27 * 48 - 2 and counts.sum() == 27 * 48


@pytest.mark.parametrize("num_frames", range(1, 261))
def test_windows_tell_of_every_frame_once_and_are_always_full(num_frames):
    told = []
    for place, window in enumerate(windows(num_frames)):
        assert len(window) == WINDOW and min(window) >= 0 and max(window) < num_frames
        middle = window[EDGE : EDGE + STEP]
        told += middle[: num_frames - place * STEP]
        # What is seen beside the middle is the film, or its first or last frame again.
        start = place * STEP
        assert window == [min(max(start + k - EDGE, 0), num_frames - 1) for k in range(WINDOW)]
    assert told == list(range(num_frames))


def test_a_file_of_the_network_is_read_and_another_is_refused(tmp_path, model):
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    loaded = load_transnet(tmp_path)
    assert all(
        torch.equal(a, b) for a, b in zip(loaded.state_dict().values(), model.state_dict().values(), strict=True)
    )
    save_file({"x": torch.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(UserError, match="does not hold the weights of TransNet V2"):
        load_transnet(tmp_path / "other.safetensors")
    (tmp_path / "broken.safetensors").write_bytes(b"no")
    with pytest.raises(UserError, match="does not hold"):
        load_transnet(tmp_path / "broken.safetensors")
    with pytest.raises(UserError, match="nemo-vfm convert"):
        load_transnet(tmp_path / "weights.pth")


@pytest.mark.slow  # converts in a process of its own
def test_the_authors_kind_of_checkpoint_is_converted_and_read(tmp_path, model):
    torch.save(model.state_dict(), tmp_path / "transnetv2-pytorch-weights.pth")
    words = [sys.executable, "-m", "nemo_vfm", "convert", str(tmp_path / "transnetv2-pytorch-weights.pth")]
    assert preloaded.run([*words, str(tmp_path / "out")]).returncode == 0
    loaded = load_transnet(tmp_path / "out").state_dict()
    assert all(torch.equal(loaded[name], value) for name, value in model.state_dict().items())
