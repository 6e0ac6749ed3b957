"""Asks a model behind an OpenAI-compatible endpoint what views of clips show.

Shape letters: T frames, H height, W width, C colours (RGB).
"""

import base64
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

import cv2

from nemo_vfm.asking.asker import Asker
from nemo_vfm.asking.pace import Pace
from nemo_vfm.asking.question import Failure, Question, Reply
from nemo_vfm.core.errors import DataError
from nemo_vfm.core.network.chat import Chat
from nemo_vfm.core.network.permission import SentText
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.core.types.media_types import Span
from nemo_vfm.curate.caption.caption_types import DESCRIBE, Caption, View, Windows, prompt_hash

MAX_VIDEO_BYTES = 48_000_000


def caption_from_reply(blank: Caption, end: Reply | Failure) -> Caption:
    """The caption.

    Args:
        blank: what is known before: key, author, model.
    """
    if isinstance(end, Failure):
        return replace(blank, status="blocked" if end.blocked else "error", failure=end.reason)
    said = end.said
    return replace(
        blank, text=said.text, status=said.ending, model=said.model or blank.model, revision=said.revision,
        tokens_in=said.tokens_in, tokens_out=said.tokens_out,
    )  # fmt: skip


class EndpointCaptioner:
    """Has clips captioned by a vision-language model behind an endpoint.

    Args:
        chat: the model.
        prompt: what it is asked about the pictures.
        send: `frames` sends JPEG pictures, which every endpoint with a vision model takes; `video` sends the window as
            an mp4, which vLLM takes and samples by itself.
        num_frames: pictures a window, spread evenly.
        longest_px: larger pictures are scaled down to this many pixels on the longer side.
        pace: how many questions are under way; the pictures of each are in memory.
        tries: attempts at a question on which the service fails.
        revision: what you know of the model's state, such as a hash of its weights; it belongs to what is kept.
        windows: how long clips are cut.
    """

    def __init__(
        self, *, chat: Chat, prompt: SentText = DESCRIBE, send: Literal["frames", "video"] = "frames",
        num_frames: int = 8, longest_px: int = 768, pace: Pace = Pace(most=64), tries: int = 4,
        revision: str = "", windows: Windows = Windows(),
    ) -> None:  # fmt: skip
        if min(num_frames, tries) < 1 or longest_px < 16 or not prompt.strip():
            raise ValueError(
                f"num_frames {num_frames}, tries {tries} and longest_px {longest_px} must be at least 1, 1 and 16, and "
                "the prompt must say something"
            )
        self.chat, self.prompt, self.send, self.num_frames = chat, prompt, send, num_frames
        self.longest_px, self.pace, self.tries, self.revision = longest_px, pace, tries, revision
        self.cut = windows

    def ready(self) -> None:
        self.chat.ready()

    def windows(self, num_frames: int) -> Sequence[Span]:
        """The pieces of a clip that are captioned one by one."""
        return self.cut.of(num_frames)

    def describe(self, views: Iterable[View]) -> Iterator[Caption]:
        """Captions as they come.

        Raises:
            EndpointDenied: the endpoint refuses us.
            UserError: it refuses everything for `pace.patience_s`.
        """
        asker = Asker(chat=self.chat, pace=self.pace, tries=self.tries)
        questions = (Question(partial(self._messages, view), key=view.key) for view in views)
        for end in asker.ask(questions):
            blank = Caption(end.key, by="endpoint", model=self.chat.model, prompt_hash=prompt_hash(self.prompt))
            caption = caption_from_reply(blank, end)
            yield replace(caption, revision=self.revision or caption.revision) if caption.has_text else caption

    def fingerprint(self) -> str:
        """All that is sent, and to which model; not where it stands."""
        sent = [self.send, self.num_frames, self.longest_px]
        return json.dumps(["endpoint/1", self.chat.identity(), self.revision, prompt_hash(self.prompt), sent])

    def _messages(self, view: View) -> list[Json]:
        content: list[Json] = [{"type": "text", "text": self.prompt}]
        if self.send == "video" and not view.is_image:
            data = view.mp4()
            if len(data) > MAX_VIDEO_BYTES:
                raise DataError(f"the window is {len(data):,} bytes, more than {MAX_VIDEO_BYTES:,}; use send: frames")
            url = f"data:video/mp4;base64,{base64.b64encode(data).decode()}"
            content.append({"type": "video_url", "video_url": {"url": url}})
        else:
            for frame_HWC in view.pictures(self.num_frames, self.longest_px):
                bgr_HWC = cv2.cvtColor(frame_HWC, cv2.COLOR_RGB2BGR)
                done, jpeg = cv2.imencode(".jpg", bgr_HWC, [cv2.IMWRITE_JPEG_QUALITY, 90])
                if not done:
                    raise DataError(f"a frame of {frame_HWC.shape} could not be written as JPEG")
                url = f"data:image/jpeg;base64,{base64.b64encode(jpeg.tobytes()).decode()}"
                content.append({"type": "image_url", "image_url": {"url": url}})
        return [{"role": "user", "content": content}]
