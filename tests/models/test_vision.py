"""Tests that image encoders from folders give transformers' numbers, and that other folders are refused."""

import json
from itertools import pairwise
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.models.image_tokens import ClipImageTokens
from nemo_vfm.models.scorer import Scorer
from nemo_vfm.models.vision import ImageEncoder, Pictures, read_config
from tests.support.encoders import tiny_clip, tiny_siglip


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_clip(tmp_path_factory.mktemp("clip"))


@pytest.fixture(scope="module")
def siglip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_siglip(tmp_path_factory.mktemp("siglip"))


def frames(height: int, width: int) -> np.ndarray:
    noise = np.random.default_rng(0).integers(0, 256, (3, height, width, 3), dtype=np.uint8)
    return np.stack([cv2.GaussianBlur(frame, (0, 0), 2) for frame in noise])


def as_video(frames_THWC: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(frames_THWC).permute(3, 0, 1, 2)[None]


@pytest.mark.parametrize("height, width", [(60, 91), (91, 60), (32, 32), (20, 70)])
@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_features_are_those_of_transformers(kind: str, height: int, width: int, request: pytest.FixtureRequest):
    import transformers

    folder = request.getfixturevalue(kind)
    model, processor = {
        "clip": (transformers.CLIPModel, transformers.CLIPImageProcessorPil),
        "siglip": (transformers.SiglipModel, transformers.SiglipImageProcessorPil),
    }[kind]
    pictures = frames(height, width)
    with torch.no_grad():
        ours = ImageEncoder(folder=folder).eval()(as_video(pictures))[0]
        inputs = processor.from_pretrained(folder)(list(pictures), return_tensors="pt")
        theirs = model.from_pretrained(folder).eval().get_image_features(**inputs).pooler_output
    assert ours == pytest.approx(theirs, abs=1e-5)
    assert ours.std() > 1e-3


@pytest.mark.parametrize("change", [
    {"rescale_factor": None}, {"rescale_factor": 0.01}, {"resample": None}, {"resample": 2}, {"size": 32},
    {"crop_size": 24}, {"do_center_crop": False, "size": {"height": 24, "width": 40}}, {"image_std": [0.1, 0.2, 0.3]},
    {"image_mean": [0.1, 0.2, 0.3]},
], ids=str)  # fmt: skip
def test_pictures_are_made_ready_as_transformers_does(clip: Path, tmp_path: Path, change: dict[str, object]):
    """None leaves the key out."""
    import transformers

    config = json.loads((clip / "preprocessor_config.json").read_text()) | change
    (tmp_path / "preprocessor_config.json").write_text(
        json.dumps({key: value for key, value in config.items() if value is not None})
    )
    pictures = frames(60, 91)
    theirs = transformers.CLIPImageProcessorPil.from_pretrained(tmp_path)(list(pictures), return_tensors="pt")
    ours = Pictures(tmp_path, read_config(tmp_path, "preprocessor_config.json")).preprocess(
        as_video(pictures)[0].movedim(1, 0)
    )
    assert ours == pytest.approx(theirs.pixel_values, abs=1e-5)


@pytest.mark.parametrize("name", ["do_resize", "do_rescale", "do_normalize"])
def test_a_step_that_is_switched_off_is_refused_by_its_key(clip: Path, tmp_path: Path, name: str):
    odd = copy_with(clip, tmp_path)
    config = json.loads((odd / "preprocessor_config.json").read_text()) | {name: False}
    (odd / "preprocessor_config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=f"sets {name} to false"):
        ImageEncoder(folder=odd)


def test_image_tokens_are_the_hidden_states_of_the_layer_that_is_named(clip: Path):
    import transformers

    pictures = as_video(frames(60, 91))[0]
    processor = transformers.CLIPImageProcessorPil.from_pretrained(clip)
    with torch.no_grad():
        inputs = processor(list(pictures.movedim(1, 0)), return_tensors="pt")
        states = transformers.CLIPVisionModel.from_pretrained(clip).eval()(**inputs, output_hidden_states=True)
    found = {layer: ClipImageTokens(folder=clip, layer=layer) for layer in (-1, -2, 0)}
    for layer, tokens in found.items():
        own = tokens.image_tokens(pictures[:, :1] / 127.5 - 1)
        assert own == pytest.approx(states.hidden_states[layer][0], abs=1e-4)
    assert len({tokens.fingerprint() for tokens in found.values()}) == 3
    loaded = transformers.CLIPVisionModel.from_pretrained(clip)
    assert found[0].held_weights().num_bytes == sum(parameter.nbytes for parameter in loaded.parameters())
    with pytest.raises(UserError, match="has 3 hidden states; layer 3 is out of range"):
        ClipImageTokens(folder=clip, layer=3).image_tokens(pictures[:, :1] / 127.5 - 1)


def test_on_the_meta_device_no_weights_are_read(clip: Path, tmp_path: Path):
    for name in ("config.json", "preprocessor_config.json"):
        (tmp_path / name).write_bytes((clip / name).read_bytes())
    with torch.device("meta"):
        assert ImageEncoder(folder=tmp_path).width == 12
    with pytest.raises(UserError, match=r"no \.safetensors"):
        ImageEncoder(folder=tmp_path)


def copy_with(folder: Path, to: Path, **changes: object) -> Path:
    for path in folder.iterdir():
        (to / path.name).write_bytes(path.read_bytes())
    config = json.loads((folder / "config.json").read_text()) | changes
    (to / "config.json").write_text(json.dumps(config))
    return to


def test_a_model_with_code_of_its_own_is_refused_and_says_what_is_supported(clip: Path, tmp_path: Path):
    odd = copy_with(clip, tmp_path, model_type="cosmos-embed1", auto_map={"AutoModel": "evil.Model"})
    (odd / "evil.py").write_text("raise SystemExit('it ran')")
    with pytest.raises(UserError, match=r"cosmos-embed1.*never run.*CLIP and SigLIP.*CosmosEmbed"):
        ImageEncoder(folder=odd)


def test_code_beside_a_known_model_is_not_run(clip: Path, tmp_path: Path):
    odd = copy_with(clip, tmp_path, auto_map={"AutoConfig": "evil.Config", "AutoModel": "evil.Model"})
    (odd / "evil.py").write_text("raise SystemExit('it ran')")
    assert ImageEncoder(folder=odd).width == 12


@pytest.mark.parametrize("change", ["lacking", "unknown", "of another shape"])
def test_weights_that_are_not_the_models_are_refused_by_name(clip: Path, tmp_path: Path, change: str):
    odd = copy_with(clip, tmp_path)
    weights = load_file(odd / "model.safetensors")
    name = "vision_model.post_layernorm.weight"
    if change == "lacking":
        del weights[name]
    else:
        weights["vision_model.more" if change == "unknown" else name] = torch.ones(3)
    save_file(weights, odd / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(DataError, match="the weights in"):
        ImageEncoder(folder=odd)


def test_a_truncated_file_is_a_sentence(clip: Path, tmp_path: Path):
    odd = copy_with(clip, tmp_path)
    (odd / "model.safetensors").write_bytes((clip / "model.safetensors").read_bytes()[:1000])
    with pytest.raises(DataError, match="the weights in"):
        ImageEncoder(folder=odd)


@pytest.mark.parametrize("text", ["[]", "{", '{"model_type": "bert"}', '{"model_type": ["clip"]}'])
def test_a_folder_of_something_else_is_a_sentence(tmp_path: Path, text: str):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(UserError, match=r"Hugging Face lays it out|supported image encoders"):
        ImageEncoder(folder=tmp_path)


def test_a_scorer_is_a_head_on_unit_features(clip: Path):
    scorer, features = Scorer(folder=clip).eval(), Scorer(folder=clip, outputs=0).eval()
    video = as_video(frames(40, 50))
    with torch.no_grad():
        vectors = features(video)
        assert vectors.norm(dim=-1) == pytest.approx(torch.ones(1, 3), abs=1e-5)
        assert scorer(video) == pytest.approx(scorer.head(vectors), abs=1e-6)


#: The widths between CLIP's 768 and the score in the public head "sac+logos+ava1-l14-linearMSE".
PUBLIC_AESTHETIC = (1024, 128, 64, 16)


def test_the_public_heads_layers_are_read_in_their_order(clip: Path, tmp_path: Path):
    widths = [12, *PUBLIC_AESTHETIC, 1]
    stored, product = {}, torch.eye(12)
    for layer, (a, b) in zip((0, 2, 4, 6, 7), pairwise(widths), strict=True):
        stored[f"layers.{layer}.weight"] = torch.randn(b, a) / a**0.5
        stored[f"layers.{layer}.bias"] = torch.zeros(b)
        product = stored[f"layers.{layer}.weight"] @ product
    save_file(stored, tmp_path / "head.safetensors")
    scorer = Scorer(folder=clip, hidden=PUBLIC_AESTHETIC, head=tmp_path / "head.safetensors")
    unit = torch.nn.functional.normalize(torch.randn(5, 12), dim=-1)
    with torch.no_grad():
        assert scorer.head(unit) == pytest.approx(unit @ product.T, abs=1e-5)


def test_a_head_of_other_widths_is_refused_with_both(clip: Path, tmp_path: Path):
    save_file({"weight": torch.ones(1, 768), "bias": torch.ones(1)}, tmp_path / "head.safetensors")
    with pytest.raises(DataError, match=r"\(1, 768\).*\(1, 12\)"):
        Scorer(folder=clip, head=tmp_path / "head.safetensors")


def test_only_the_head_learns_unless_asked(clip: Path):
    assert {name.split(".")[0] for name, p in Scorer(folder=clip).named_parameters() if p.requires_grad} == {"head"}
    assert all(parameter.requires_grad for parameter in Scorer(folder=clip, train_encoder=True).parameters())


def test_a_fingerprint_follows_settings_and_bytes_and_needs_no_weights(clip: Path, tmp_path: Path):
    def fingerprint(folder: Path, **settings: object) -> str:
        with torch.device("meta"):
            return Scorer(folder=folder, **settings).fingerprint()

    same, other = copy_with(clip, tmp_path), fingerprint(clip, normalise=False)
    weights = load_file(same / "model.safetensors")
    assert fingerprint(clip) == fingerprint(clip) != other
    weights["visual_projection.weight"][0, 0] += 1
    save_file(weights, same / "model.safetensors", metadata={"format": "pt"})
    assert fingerprint(same) != fingerprint(clip)
