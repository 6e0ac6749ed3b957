"""Scores how pleasing a clip is to look at, with a trained scorer on one frame a second."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from nemo_vfm.core.optional import needs_gpu
from nemo_vfm.core.types.factory import Factory
from nemo_vfm.core.types.media_types import Frames
from nemo_vfm.core.types.task import Predicts
from nemo_vfm.curate.learned.model_stage import FingerprintedModule, ModelStage, per_second
from nemo_vfm.curate.record.stage import LearnedFinding

# Batches of other shapes differ in the sixth digit. Four are kept, so that a clip's row is the same in any company,
# but for a value that happens to lie on the border between two.
DIGITS = 4


@needs_gpu()
class Aesthetic:
    """`aesthetic.mean`, `aesthetic.min` and `aesthetic.p10` over a clip's frames, on the scorer's own scale.

    With CLIP ViT-L/14, normalised features and the public head "sac+logos+ava1-l14-linearMSE" (as safetensors, hidden
    widths 1024, 128, 64, 16) the scale is about 1 to 10: 5.5 is fair, 6.5 high.

    Args:
        model: builds the scorer, with one output; see `models.scorer.Scorer`.
        task: says what its output means; the task it was or will be trained by.
        trained: a checkpoint of a training of this scorer, or a folder of them; None takes the model's own weights.
        per_second: frames a second that are looked at.
        max_frames: at most this many, spread evenly where there would be more.
        batch_size: frames at once.
    """

    def __init__(
        self, *, model: Factory[[], FingerprintedModule], task: Predicts, trained: Path | None = None,
        per_second: float = 1.0, max_frames: int = 60, batch_size: int = 16,
    ) -> None:  # fmt: skip
        if per_second <= 0 or max_frames < 1:
            raise ValueError(f"per_second ({per_second}) must be above 0 and max_frames ({max_frames}) at least 1")
        self.bearer = ModelStage(model=model, task=task, trained=trained, batch_size=batch_size)
        self.per_second, self.max_frames = per_second, max_frames

    def columns(self) -> Sequence[str]:
        return ("aesthetic.mean", "aesthetic.min", "aesthetic.p10")

    def frame_indices(self, num_frames: int, fps: float) -> list[int]:
        return per_second(num_frames, fps, self.per_second, self.max_frames)

    def load(self) -> None:
        self.bearer.load()

    def judge(self, clips: Sequence[Frames]) -> list[LearnedFinding]:
        found = []
        for scores_FK in self.bearer.say(clips):
            scores_F = scores_FK[:, 0]
            values = (scores_F.mean(), scores_F.min(), np.percentile(scores_F, 10))
            found.append(
                LearnedFinding({n: round(float(v), DIGITS) for n, v in zip(self.columns(), values, strict=True)})
            )
        return found

    def fingerprint(self) -> str:
        return f"aesthetic/1 {self.bearer.fingerprint()} {self.per_second} {self.max_frames}"
