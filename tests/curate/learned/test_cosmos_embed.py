"""Tests a folder whose model is code of its own: its vectors, who may name it, and its error messages.

No published Cosmos-Embed1 is here: the folder has its interface, a tiny model, and says what it was given.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from nemo_vfm.config.locate import NotLocated, locate, trust_list
from nemo_vfm.core.errors import UserError
from nemo_vfm.curate.learned.cosmos_embed import CosmosEmbed
from nemo_vfm.curate.record.stage import Compares, LearnedStage
from nemo_vfm.dedup.semantic import as_vectors
from tests.support.films import pan

NAME = "nemo_vfm.curate.learned.cosmos_embed.CosmosEmbed"
MODEL = """
from types import SimpleNamespace

import torch
from transformers import PretrainedConfig, PreTrainedModel


class TinyConfig(PretrainedConfig):
    model_type = "cosmos-embed1"


class TinyEmbed(PreTrainedModel):
    config_class = TinyConfig

    def __init__(self, config):
        super().__init__(config)
        self.project = torch.nn.Linear(3 * 4 * 4, 6, bias=False)
        self.post_init()

    def get_video_embeddings(self, videos):
        assert videos.ndim == 5 and videos.shape[1:] == (4, 3, 8, 8), videos.shape
        small = torch.nn.functional.avg_pool2d(videos.flatten(0, 1), 2).flatten(1)
        return SimpleNamespace(visual_proj=self.project(small).view(len(videos), -1, 6).mean(1))
"""
PROCESSOR = """
import numpy as np
import torch
from transformers import BatchFeature
from transformers.processing_utils import ProcessorMixin


class TinyProcessor(ProcessorMixin):
    attributes = []

    def __call__(self, videos=None, return_tensors=None):
        assert videos.dtype == np.uint8 and return_tensors == "pt"
        frames = torch.from_numpy(videos).float() / 255
        ready = torch.nn.functional.interpolate(frames.flatten(0, 1), (8, 8)).view(*frames.shape[:3], 8, 8)
        return BatchFeature({"videos": ready})
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """As Hugging Face lays it out; its code is copied to where modules are kept, which is a folder of the test's."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    made = tmp_path / "tiny-embed"
    made.mkdir()
    code = {"AutoConfig": "modeling_tiny.TinyConfig", "AutoModel": "modeling_tiny.TinyEmbed"}
    (made / "config.json").write_text(json.dumps({"model_type": "cosmos-embed1", "auto_map": code}))
    processor = {"processor_class": "TinyProcessor", "auto_map": {"AutoProcessor": "processing_tiny.TinyProcessor"}}
    (made / "processor_config.json").write_text(json.dumps(processor))
    (made / "modeling_tiny.py").write_text(MODEL)
    (made / "processing_tiny.py").write_text(PROCESSOR)
    weight = torch.randn(6, 48, generator=torch.Generator().manual_seed(0))
    save_file({"project.weight": weight}, made / "model.safetensors", {"format": "pt"})
    return made


def test_vectors_are_those_of_the_folders_own_code_in_any_company(folder: Path):
    stage = CosmosEmbed(folder=folder, num_frames=4)
    assert isinstance(stage, LearnedStage) and isinstance(stage, Compares)
    clips = [pan(seed, 9)[stage.frame_indices(9, 24.0)] for seed in range(3)]
    together = [one.vector for one in stage.judge(clips)]
    assert together == [stage.judge([clip])[0].vector for clip in clips] and len(set(together)) == 3
    weight = torch.randn(6, 48, generator=torch.Generator().manual_seed(0))
    frames = torch.from_numpy(clips[0].transpose(0, 3, 1, 2).copy()).float() / 255
    small = torch.nn.functional.avg_pool2d(torch.nn.functional.interpolate(frames, (8, 8)), 2).flatten(1)
    expected = torch.nn.functional.normalize((small @ weight.T).mean(0), dim=0)
    assert as_vectors(together[:1])[0] == pytest.approx(expected.numpy(), abs=1e-3)
    assert max(stage.likeness([*together, together[1]])) == pytest.approx(1.0, abs=1e-3)


def test_a_clip_shorter_than_the_model_takes_is_stretched(folder: Path):
    stage = CosmosEmbed(folder=folder, num_frames=4)
    clip = pan(0, 2)
    stretched = stage.judge([clip[[0, 0, 1, 1]]])
    assert stage.judge([clip[stage.frame_indices(2, 24.0)]])[0].vector == stretched[0].vector
    assert len(as_vectors([stage.judge([clip[:1]])[0].vector])[0]) == 6
    with pytest.raises(ValueError, match="without a frame"):
        stage.judge([clip[:0]])


def test_code_weights_and_settings_are_in_the_fingerprint(folder: Path):
    def now(frames: int = 4) -> str:
        return CosmosEmbed(folder=folder, num_frames=frames).fingerprint()

    before = now()
    assert now() == before != now(8)
    (folder / "modeling_tiny.py").write_text(MODEL + "# another\n")
    assert now() != before


def test_a_recipe_may_name_it_only_where_its_user_trusts_such_code():
    with pytest.raises(NotLocated, match="add --trust model_code"):
        locate(NAME, trust_list())
    assert locate(NAME, trust_list(["model_code"])) is CosmosEmbed


@pytest.mark.parametrize(("spoilt", "said"), [
    ("import no_such_package\n", "does not run here with transformers .*no_such_package"),
    ("raise RuntimeError('older versions only')\n", "RuntimeError: older versions only"),
    (MODEL.replace("get_video_embeddings", "embed"), "get_video_embeddings"),
])  # fmt: skip
def test_code_that_does_not_run_is_a_sentence(folder: Path, spoilt: str, said: str):
    (folder / "modeling_tiny.py").write_text(spoilt)
    with pytest.raises(UserError, match=said):
        CosmosEmbed(folder=folder, num_frames=4).judge([np.zeros((4, 8, 8, 3), np.uint8)])


def test_weights_that_are_pickled_are_not_read(folder: Path):
    torch.save({"project.weight": torch.zeros(6, 48)}, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(UserError, match="not a Cosmos-Embed1 folder"):
        CosmosEmbed(folder=folder, num_frames=4).load()


def test_code_of_another_folder_is_not_fetched(folder: Path):
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {name: f"somebody/model--{place}" for name, place in config["auto_map"].items()}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=r"code from elsewhere \(.*somebody/model--"):
        CosmosEmbed(folder=folder, num_frames=4).load()
