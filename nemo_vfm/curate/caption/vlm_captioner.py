"""Captions views of clips with a vision-language model from a local folder.

Shape letters: T frames, H height, W width, C colours (RGB).
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from nemo_vfm.core.errors import DataError
from nemo_vfm.core.optional import needs_gpu, needs_packages
from nemo_vfm.core.precision import Precision, PrecisionName
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.core.types.media_types import Span
from nemo_vfm.curate.caption.caption_types import DESCRIBE, Caption, View, Windows, prompt_hash
from nemo_vfm.curate.caption.local_model import LocalModel, groups
from nemo_vfm.models.pretrained import fingerprint_of


@needs_gpu()
@needs_packages("transformers")
class HuggingFaceCaptioner:
    """Captions clips with a vision-language model of transformers, from a local folder.

    Args:
        folder: as `save_pretrained` writes it: config.json, safetensors, processor, chat template.
        prompt: what it is asked about the pictures.
        num_frames: pictures a window, spread evenly.
        longest_px: larger pictures are first scaled down to this many pixels on the longer side.
        max_tokens: longest caption, in tokens; a longer one is cut and marked as truncated.
        batch_size: windows at once. The same clip may get slightly other words in other company, as sums are rounded
            otherwise; with 1 it cannot.
        precision: of weights and arithmetic: auto, bf16 or fp32.
        windows: how long clips are cut.
    """

    def __init__(
        self, *, folder: Path, prompt: str = DESCRIBE, num_frames: int = 8, longest_px: int = 768,
        max_tokens: int = 256, batch_size: int = 1, precision: PrecisionName = "auto", windows: Windows = Windows(),
    ) -> None:  # fmt: skip
        if min(num_frames, max_tokens, batch_size) < 1 or longest_px < 16 or not prompt.strip():
            raise ValueError(
                f"num_frames {num_frames}, max_tokens {max_tokens}, batch_size {batch_size} and longest_px "
                f"{longest_px} must be at least 1, 1, 1 and 16, and the prompt must say something"
            )
        self.folder, self.prompt, self.num_frames, self.longest_px = folder, prompt, num_frames, longest_px
        self.max_tokens, self.batch_size, self.precision = max_tokens, batch_size, precision
        self.cut, self._model = windows, LocalModel(folder, "sees", Precision(precision), max_tokens)

    def windows(self, num_frames: int) -> Sequence[Span]:
        """The pieces of a clip that are captioned one by one."""
        return self.cut.of(num_frames)

    def describe(self, views: Iterable[View]) -> Iterator[Caption]:
        """Captions, a batch at a time."""
        from PIL import Image

        revision, prompt = fingerprint_of(self.folder), prompt_hash(self.prompt)
        for group in groups(views, self.batch_size):
            conversations: dict[str, Json] = {}
            for view in group:
                try:
                    frames_THWC = view.pictures(self.num_frames, self.longest_px)
                    pictures = [{"type": "image", "image": Image.fromarray(frame)} for frame in frames_THWC]
                    content = [*pictures, {"type": "text", "text": self.prompt}]
                    conversations[view.key] = [{"role": "user", "content": content}]
                except DataError as error:
                    yield Caption(view.key, "", "error", str(error), "hugging_face", self.folder.name, revision, prompt)
            answers = self._model.speak(list(conversations.values())) if conversations else []
            for key, spoken in zip(conversations, answers, strict=True):
                yield Caption(
                    key, spoken.text, spoken.status, None, "hugging_face", self.folder.name, revision, prompt,
                    spoken.tokens_in, spoken.tokens_out,
                )  # fmt: skip

    def fingerprint(self) -> str:
        """The bytes of the model, the prompt and the pictures; with larger batches also their size."""
        shown = [self.num_frames, self.longest_px, self.batch_size, prompt_hash(self.prompt)]
        return json.dumps(["hugging_face/1", self._model.identity(), shown])
