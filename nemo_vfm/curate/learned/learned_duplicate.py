"""Embeds clips with a trained encoder, and finds clips that are alike by their vectors."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from nemo_vfm.core.optional import needs_gpu
from nemo_vfm.core.types.factory import Factory
from nemo_vfm.core.types.media_types import Frames
from nemo_vfm.core.types.task import Predicts
from nemo_vfm.curate.learned.model_stage import FingerprintedModule, ModelStage, evenly
from nemo_vfm.curate.record.stage import LearnedFinding
from nemo_vfm.curate.score.semantic_duplicate import VectorDuplicates
from nemo_vfm.dedup.semantic import as_text


@needs_gpu()
class LearnedDuplicate(VectorDuplicates):
    """Finds clips of similar content by CLIP or SigLIP features; see `score.semantic_duplicate`.

    A clip's vector is the mean of its frames' unit vectors, scaled to length 1.

    Args:
        model: builds the encoder, such as a `Scorer` with no outputs.
        task: interprets its output, such as `Recognise`.
        trained: a checkpoint of a training of this encoder, or a folder of them; None takes the model's own weights.
        num_frames: frames that are used, spread over the clip.
        batch_size: frames at once.
        quality: the score by which the better of two clips is chosen; higher is better, and it may be absent.
        seed: of the clusters, which only more than 2000 clips have.
    """

    def __init__(
        self, *, model: Factory[[], FingerprintedModule], task: Predicts, trained: Path | None = None,
        num_frames: int = 8,
        batch_size: int = 16, quality: str = "sharpness", seed: int = 0,
    ) -> None:  # fmt: skip
        if num_frames < 1:
            raise ValueError(f"num_frames is {num_frames}; it must be at least 1")
        self.bearer = ModelStage(model=model, task=task, trained=trained, batch_size=batch_size)
        self.num_frames, self.quality, self.seed = num_frames, quality, seed

    def columns(self) -> Sequence[str]:
        return ("learned_similarity",)

    def frame_indices(self, num_frames: int, fps: float) -> list[int]:
        return evenly(num_frames, self.num_frames)

    def load(self) -> None:
        self.bearer.load()

    def judge(self, clips: Sequence[Frames]) -> list[LearnedFinding]:
        """See `LearnedStage.judge`; vectors are stored in float16, since further digits depend on the batch."""
        found = []
        for features_TD in self.bearer.say(clips):
            lengths_T1 = np.linalg.norm(features_TD, axis=1, keepdims=True)
            mean_D = (features_TD / np.maximum(lengths_T1, 1e-12)).mean(axis=0)
            direction_D = np.asarray(mean_D / max(float(np.linalg.norm(mean_D)), 1e-12), dtype=np.float32)
            found.append(LearnedFinding(vector=as_text(direction_D)))
        return found

    def fingerprint(self) -> str:
        return f"semantic/1 {self.bearer.fingerprint()} {self.num_frames}"
