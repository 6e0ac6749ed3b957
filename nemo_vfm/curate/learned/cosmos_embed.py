"""Embeds clips with a Cosmos-Embed1, and finds clips that are alike by their vectors.

Such a model comes as Python code in its own folder. A recipe may name this stage only under `--trust model_code`.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.optional import needs_gpu, needs_packages, require
from nemo_vfm.core.sanitize import beginning
from nemo_vfm.core.storage.files import sha256_text
from nemo_vfm.core.types.media_types import Frames
from nemo_vfm.curate.learned.model_stage import evenly
from nemo_vfm.curate.record.stage import LearnedFinding
from nemo_vfm.curate.score.semantic_duplicate import VectorDuplicates
from nemo_vfm.dedup.semantic import as_text
from nemo_vfm.models.pretrained import files_sha256
from nemo_vfm.models.vision import read_config

#: Loaded processors and models by fingerprint, once a process: stages are sent between processes, and hold settings
_LOADED: dict[str, tuple[Any, Any]] = {}


@needs_gpu()
@needs_packages("transformers")
class CosmosEmbed(VectorDuplicates):
    """Finds clips of similar content by one vector per clip; see `score.semantic_duplicate`.

    The folder's own code makes pictures ready and computes: `processor(videos=...)` and
    `model.get_video_embeddings(videos=...).visual_proj`, in float32. It is run with your rights.

    Args:
        folder: with config.json (whose auto_map names code in this folder), that code, a processor's settings, and
            weights as safetensors.
        num_frames: frames the model takes, spread over the clip; a shorter clip's are repeated.
        quality: the score by which the better of two clips is chosen; higher is better, and it may be absent.
        seed: of the clusters, which only more than 2000 clips have.
    """

    def __init__(self, *, folder: Path, num_frames: int = 8, quality: str = "sharpness", seed: int = 0) -> None:
        if num_frames < 1:
            raise ValueError(f"num_frames is {num_frames}; it must be at least 1")
        self.folder, self.num_frames, self.quality, self.seed = folder, num_frames, quality, seed
        self._fingerprint = ""

    def columns(self) -> Sequence[str]:
        return ("cosmos_similarity",)

    def frame_indices(self, num_frames: int, fps: float) -> list[int]:
        return evenly(num_frames, self.num_frames)

    def fingerprint(self) -> str:
        """See `LearnedStage.fingerprint`: of weights, settings and code.

        Raises:
            UserError: the folder is not one of such a model.
        """
        if not self._fingerprint:
            code = sorted(self.folder.glob("*.py"))
            if not (code and (self.folder / "config.json").is_file() and any(self.folder.glob("*.safetensors"))):
                raise UserError(f"{self.folder} is not a Cosmos-Embed1 folder with config.json, its own code (.py) "
                                f"and weights (.safetensors)")  # fmt: skip
            hashes = " ".join(f"{file.name}:{files_sha256(file)}" for file in code)
            made_of = f"cosmos_embed/1 {self.num_frames} {files_sha256(self.folder)} {hashes}"
            self._fingerprint = sha256_text(made_of)[:32]
        return self._fingerprint

    def load(self) -> None:
        """See `LearnedStage.load`.

        Raises:
            UserError: the folder's code cannot be run here, or is not in the folder.
        """
        import torch

        from nemo_vfm.core.device import device

        if self.fingerprint() in _LOADED:
            return
        transformers = require("transformers", purpose="Cosmos-Embed1 from a folder")
        # An entry such as `somebody/model--file.Class` names code elsewhere, which transformers fetches, local or not.
        for file in sorted(self.folder.glob("*.json")):
            found = read_config(self.folder, file.name).get("auto_map") if b'"auto_map"' in file.read_bytes() else None
            if "--" in (named := json.dumps(found)):
                raise UserError(
                    f"{file} takes its code from elsewhere ({named}); copy those files into {self.folder} and remove "
                    f"everything up to the -- from their names in auto_map"
                )
        ours = {"trust_remote_code": True, "local_files_only": True}
        try:
            processor = transformers.AutoProcessor.from_pretrained(self.folder, **ours)
            model = transformers.AutoModel.from_pretrained(
                self.folder, use_safetensors=True, dtype=torch.float32, **ours
            )
            model = model.eval().to(device())
            assert callable(model.get_video_embeddings)
        except Exception as error:  # it is anybody's code
            raise UserError(
                f"the code in {self.folder} does not run here with transformers {transformers.__version__} "
                f"({type(error).__name__}: {beginning(error, 300)}); install a version that it supports"
            ) from error
        _LOADED[self.fingerprint()] = processor, model

    def judge(self, clips: Sequence[Frames]) -> list[LearnedFinding]:
        """See `LearnedStage.judge`; vectors are stored in float16. Each clip is computed alone: no other affects it."""
        import torch

        from nemo_vfm.core.device import device

        self.load()
        processor, model = _LOADED[self.fingerprint()]
        found = []
        for frames_THWC in clips:
            if not len(frames_THWC):
                raise ValueError("a clip without a frame cannot be judged")
            places = np.linspace(0, len(frames_THWC) - 1, self.num_frames).round().astype(int)
            video_BTCHW = np.ascontiguousarray(frames_THWC[places].transpose(0, 3, 1, 2))[None]
            with torch.no_grad():
                ready = processor(videos=video_BTCHW, return_tensors="pt")["videos"]
                embedding = model.get_video_embeddings(videos=ready.to(device(), torch.float32)).visual_proj
            vector_D = embedding.float().cpu().numpy().reshape(-1)
            length = float(np.linalg.norm(vector_D))
            if not np.isfinite(length) or length == 0:
                raise DataError(f"the model in {self.folder} gives a vector of length {length}, which has no direction")
            found.append(LearnedFinding(vector=as_text(np.asarray(vector_D / length, dtype=np.float32))))
        return found
