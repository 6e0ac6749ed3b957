"""Rewrites captions with a language model, which keeps their facts; the originals are kept.

The caption follows the prompt as data. A prompt injection can at worst give a wrong caption: the answer is cleaned
like every text and is used for nothing else.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Protocol, runtime_checkable

from nemo_vfm.asking.asker import Asker
from nemo_vfm.asking.pace import Pace
from nemo_vfm.asking.question import Question
from nemo_vfm.core.network.chat import Chat
from nemo_vfm.core.network.permission import SentText
from nemo_vfm.core.optional import needs_gpu, needs_packages
from nemo_vfm.core.precision import Precision, PrecisionName
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.curate.caption.caption_types import REWRITE, Caption, CaptionDraft, prompt_hash
from nemo_vfm.curate.caption.endpoint_captioner import caption_from_reply
from nemo_vfm.curate.caption.local_model import LocalModel, groups
from nemo_vfm.curate.record.stage import Ready
from nemo_vfm.models.pretrained import fingerprint_of


@runtime_checkable
class Writer(Protocol):
    """Answers messages."""

    def answer(self, messages: Iterable[tuple[str, str]]) -> Iterator[Caption]:
        """A caption with the key of each (key, message), in any order."""
        ...

    def fingerprint(self) -> str:
        """Changes whenever the same message would get another answer."""
        ...


class Rewriter:
    """Has captions rewritten by a language model.

    Args:
        writer: the model, from a folder or behind an endpoint.
        prompt: what it is asked; the caption follows, between two lines.
        longest_growth: an answer more than so many times as long as the caption (and above 200 characters) is a
            failure: such models have begun to tell something else.
    """

    def __init__(self, *, writer: Writer, prompt: SentText = REWRITE, longest_growth: float = 8.0) -> None:
        if longest_growth <= 0 or not prompt.strip():
            raise ValueError(f"longest_growth is {longest_growth}, expected above 0, and the prompt must say something")
        self.writer, self.prompt, self.longest_growth = writer, prompt, longest_growth

    def ready(self) -> None:
        if isinstance(self.writer, Ready):
            self.writer.ready()

    def edit(self, drafts: Iterable[CaptionDraft]) -> Iterator[Caption]:
        """Each text rewritten; one that comes back far too long is a failure."""
        lengths: dict[str, int] = {}

        def messages() -> Iterator[tuple[str, str]]:
            for draft in drafts:
                lengths[draft.key] = len(draft.text)
                yield draft.key, f"{self.prompt}\n\n---\n{draft.text}\n---"

        for caption in self.writer.answer(messages()):
            known = replace(caption, prompt_hash=prompt_hash(self.prompt))
            limit = max(200.0, self.longest_growth * lengths.get(caption.key, 0))
            if len(caption.text) > limit:
                failure = f"{len(caption.text)} characters came back, but at most {limit:.0f} were expected"
                known = replace(known, text="", status="error", failure=failure)
            yield known

    def fingerprint(self) -> str:
        """Writer and prompt."""
        return json.dumps(["rewriter/1", self.writer.fingerprint(), prompt_hash(self.prompt), self.longest_growth])


class EndpointWriter:
    """A language model behind an OpenAI-compatible endpoint.

    Args:
        chat: the model.
        pace: how many messages are under way.
        tries: attempts at a message on which the service fails.
    """

    def __init__(self, *, chat: Chat, pace: Pace = Pace(), tries: int = 4) -> None:
        self.chat, self.asker = chat, Asker(chat=chat, pace=pace, tries=tries)

    def ready(self) -> None:
        self.chat.ready()

    def answer(self, messages: Iterable[tuple[str, str]]) -> Iterator[Caption]:
        """Answers as they come."""
        questions = (Question([{"role": "user", "content": message}], key=key) for key, message in messages)
        for end in self.asker.ask(questions):
            yield caption_from_reply(Caption(end.key, model=self.chat.model), end)

    def fingerprint(self) -> str:
        """Which model, and not where it stands."""
        return json.dumps(["endpoint/1", self.chat.identity()])


@needs_gpu()
@needs_packages("transformers")
class HuggingFaceWriter:
    """A language model of transformers from a local folder.

    Args:
        folder: as `save_pretrained` writes it, with safetensors and a chat template.
        max_tokens: longest answer, in tokens.
        batch_size: messages at once.
        precision: of weights and arithmetic: auto, bf16 or fp32.
    """

    def __init__(
        self, *, folder: Path, max_tokens: int = 256, batch_size: int = 1, precision: PrecisionName = "auto"
    ) -> None:
        if min(max_tokens, batch_size) < 1:
            raise ValueError(f"max_tokens {max_tokens} and batch_size {batch_size} must be at least 1")
        self.folder, self.max_tokens, self.batch_size, self.precision = folder, max_tokens, batch_size, precision
        self._model = LocalModel(folder, "reads", Precision(precision), max_tokens)

    def answer(self, messages: Iterable[tuple[str, str]]) -> Iterator[Caption]:
        """Answers, a batch at a time."""
        for group in groups(messages, self.batch_size):
            conversations: list[Json] = [[{"role": "user", "content": message}] for _, message in group]
            revision = fingerprint_of(self.folder)
            for (key, _), spoken in zip(group, self._model.speak(conversations), strict=True):
                blank = Caption(key, spoken.text, spoken.status, model=self.folder.name, revision=revision)
                yield replace(blank, tokens_in=spoken.tokens_in, tokens_out=spoken.tokens_out)

    def fingerprint(self) -> str:
        """The bytes of the model."""
        return json.dumps(["hugging_face/1", self._model.identity(), self.batch_size])
