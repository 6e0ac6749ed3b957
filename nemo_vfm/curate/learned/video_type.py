"""Classifies a clip as one of some named types with a trained scorer, and says how sure it is."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.optional import needs_gpu
from nemo_vfm.core.storage.files import read_json
from nemo_vfm.core.types.factory import Factory
from nemo_vfm.core.types.media_types import Frames
from nemo_vfm.core.types.task import Predicts
from nemo_vfm.curate.learned.aesthetic import DIGITS
from nemo_vfm.curate.learned.model_stage import FingerprintedModule, ModelStage, evenly
from nemo_vfm.curate.record.stage import LearnedFinding


@runtime_checkable
class Sorts(Predicts, Protocol):
    """A task that puts clips into named classes."""

    def names(self) -> Sequence[str]:
        """The classes, in the order of the model's outputs."""
        ...


@needs_gpu()
class VideoType:
    """`type`, the likeliest class, and `type.<class>`, the mean of its probabilities over the frames.

    Args:
        model: builds the scorer, with one output a class; see `models.scorer.Scorer`.
        task: names the classes, in the order of the outputs; the task it was or will be trained by.
        classes: a folder whose config.json names the classes (`id2label`, or `classes`), as a check on the task; None
            trusts the task.
        trained: a checkpoint of a training of this scorer, or a folder of them; None takes the model's own weights.
        num_frames: frames that are used, spread over the clip.
        batch_size: frames at once.
    """

    def __init__(
        self, *, model: Factory[[], FingerprintedModule], task: Sorts, classes: Path | None = None,
        trained: Path | None = None, num_frames: int = 8, batch_size: int = 16,
    ) -> None:  # fmt: skip
        if num_frames < 1:
            raise ValueError(f"num_frames is {num_frames}; it must be at least 1")
        self.bearer = ModelStage(model=model, task=task, trained=trained, batch_size=batch_size)
        self.classes, self.names, self.num_frames = classes, tuple(task.names()), num_frames

    def columns(self) -> Sequence[str]:
        """The type, and a score a class."""
        return ("type", *(f"type.{name}" for name in self.names))

    def labels(self) -> Mapping[str, Sequence[str]]:
        return {"type": self.names}

    def frame_indices(self, num_frames: int, fps: float) -> list[int]:
        return evenly(num_frames, self.num_frames)

    def load(self) -> None:
        """See `LearnedStage.load`.

        Raises:
            UserError: the folder's classes are not the task's.
        """
        if self.classes is not None:
            path = self.classes / "config.json"
            try:
                content = read_json(path)
                names = content.get("classes") or [
                    content["id2label"][key] for key in sorted(content["id2label"], key=int)
                ]
                found = [str(name) for name in names]
            except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                raise UserError(f"{path} names no classes ({error!r}); expected id2label or classes in it") from error
            if found != list(self.names):  # another order would put every clip under a wrong name in silence
                raise UserError(
                    f"{path} names the classes {found}, but the task names {list(self.names)}; make them the same"
                )
        self.bearer.load()

    def judge(self, clips: Sequence[Frames]) -> list[LearnedFinding]:
        found = []
        for shares_TK in self.bearer.say(clips):
            shares_K = shares_TK.mean(axis=0)
            if len(shares_K) != len(self.names):
                raise ValueError(
                    f"the scorer has {len(shares_K)} outputs for the {len(self.names)} classes of its task"
                )
            rounded = [round(float(share), DIGITS) for share in shares_K]
            scores = {f"type.{name}": share for name, share in zip(self.names, rounded, strict=True)}
            found.append(LearnedFinding({"type": self.names[rounded.index(max(rounded))], **scores}))
        return found

    def fingerprint(self) -> str:
        return f"type/1 {self.bearer.fingerprint()} {self.num_frames}"
