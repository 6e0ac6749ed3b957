"""Answers messages with a model in this process: what `Chat` is for an endpoint, without HTTP."""

import json
import queue
import threading
import time
from collections import Counter
from collections.abc import Sequence

from nemo_vfm.core.errors import DataError, NemoVfmError, UserError
from nemo_vfm.core.network.chat import ChatAnswer, Ending, require_said
from nemo_vfm.core.seed import derive
from nemo_vfm.core.types.factory import Factory
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.language.token_choice import Choice
from nemo_vfm.serve.answer_text import ChoiceWriter, Piece
from nemo_vfm.serve.continuous.text_request import TextRequest
from nemo_vfm.serve.local_engine import LocalEngine
from nemo_vfm.serve.served_model import ServedModel


class LocalChat(LocalEngine):
    """A model in this process. Threads that ask at the same time are answered as one batch.

    Args:
        model: loads it at the first use, such as `served_folder`; it needs a chat format.
        max_tokens: longest answer, in tokens.
        choice: how the next token is chosen.
        seed: of the draws. The same messages asked again get other draws.
        room_gb: memory for keys and values.
        at_once: texts written at once; others wait.
    """

    def __init__(
        self, *, model: Factory[[], ServedModel], max_tokens: int = 256, choice: Choice = Choice(temperature=0),
        seed: int = 0, room_gb: float = 2.0, at_once: int = 16,
    ) -> None:  # fmt: skip
        if max_tokens < 1:
            raise ValueError(f"max_tokens ({max_tokens}) must be at least 1")
        super().__init__(model, room_gb, at_once)
        self.max_tokens, self.choice, self.seed = max_tokens, choice, seed
        self._times_lock = threading.Lock()
        self._times: Counter[str] = Counter()

    def say(self, messages: Sequence[Json]) -> ChatAnswer:
        """What the model says."""
        began, (served, engine) = time.monotonic(), self.load()
        assert served.chat is not None, "a model without a chat format is refused when it is loaded"
        try:
            tokens = tuple(served.chat.tokens(messages, add_generation_prompt=True))
        except DataError as error:
            raise DataError(f"messages: {error}") from error
        if len(tokens) + self.max_tokens > served.context:
            raise DataError(f"{len(tokens):,} tokens of messages and max_tokens {self.max_tokens:,} exceed the context "
                            f"of {served.context:,}; shorten either")  # fmt: skip
        text = json.dumps(list(messages), sort_keys=True)
        with self._times_lock:
            self._times[text] += 1
            seed = derive(self.seed, "chat", text, self._times[text])
        request = TextRequest(tokens, self.max_tokens, self.choice, seed, served.stop | served.chat.stop_tokens())
        pieces: queue.SimpleQueue[Piece] = queue.SimpleQueue()
        writer = ChoiceWriter(served.decode, tokens, (), pieces.put, in_pieces=False,
                              split=served.thought_split(tokens))  # fmt: skip
        try:
            engine.submit([(request, writer)])
        except ValueError as error:
            raise DataError(f"{error}; raise room_gb, or lower max_tokens") from None
        piece = pieces.get()
        if piece.ending not in ("stop", "length"):
            raise NemoVfmError("the model has failed on these messages; the log says why")
        ending: Ending = "truncated" if piece.ending == "length" else "success"
        if piece.thought:
            require_said(piece.text, piece.thought, ending)
        return ChatAnswer(piece.text, ending, served.name, served.revision, len(tokens), piece.num_tokens,
                          time.monotonic() - began, piece.thought.strip())  # fmt: skip

    def identity(self) -> Json:
        """All that the words depend on but the messages."""
        served, choice = self.load()[0], self.choice
        settings = [choice.temperature, choice.top_k, choice.top_p, choice.min_p]
        return ["local/1", served.name, served.revision, self.max_tokens, settings, self.seed]

    def longest_answer_tokens(self) -> int:
        """The limit on an answer."""
        return self.max_tokens

    def require_fit(self, served: ServedModel) -> None:
        if served.chat is None:
            raise UserError(f"{served.name} has no chat format: its folder has no chat template")
        if served.reward is not None:
            raise UserError(f"{served.name} is a reward model and generates no text; LocalReward returns its scores")
