"""Runs a `BatchEngine` on a thread of its own, behind a queue of bounded length."""

import math
import threading
import time
from collections.abc import Sequence

from nemo_vfm.core import log
from nemo_vfm.serve.continuous.batch_engine import BatchEngine, ServedText
from nemo_vfm.serve.continuous.text_request import TextListener, TextRequest

_LONGEST_RETRY_S = 60
_REST_S = 60.0  # other ranks wait for the next order half an hour at most


class QueueFull(Exception):
    """So many texts wait that another has to be asked for later, after about so many seconds."""

    def __init__(self, retry_after_s: int) -> None:
        super().__init__(f"all places are taken; try again in about {retry_after_s} s")
        self.retry_after_s = retry_after_s


class EngineThread:
    """Takes texts from any thread.

    Args:
        engine: used by this thread alone from now on.
        max_waiting: texts that may wait for a place; None lets any number wait.
    """

    def __init__(self, engine: BatchEngine, *, max_waiting: int | None = 256) -> None:
        self._engine, self.max_waiting = engine, max_waiting
        self._changed = threading.Condition()
        self._arrived: list[ServedText] = []
        self._cancelled: list[ServedText] = []
        self._live: set[ServedText] = set()
        self._closing = False
        self._busy_since, self._tokens_before = time.monotonic(), 0  # of the current busy time
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def submit(self, requests: Sequence[tuple[TextRequest, TextListener]]) -> list[ServedText]:
        """Take all of them, or none."""
        for request, _ in requests:
            if request.places > self.max_tokens():
                raise ValueError(f"the text needs room for {request.places:,} tokens, but there is room for "
                                 f"{self.max_tokens():,} in all")  # fmt: skip
        texts = [ServedText(request, listener) for request, listener in requests]
        with self._changed:
            # A client may ask again within the step that ended its text.
            live = [text for text in self._live if not text.ended]
            if self.max_waiting is not None and len(live) + len(texts) > self.max_waiting + self._engine.max_running:
                num_new = self._engine.num_tokens - self._tokens_before
                rate = max(1.0, num_new / max(1e-3, time.monotonic() - self._busy_since))  # tokens a second
                left = sum(text.request.places for text in live)
                raise QueueFull(min(_LONGEST_RETRY_S, math.ceil(left / rate) or 1))
            self._live.update(texts)
            self._arrived += texts
            self._changed.notify()
        return texts

    def cancel(self, texts: Sequence[ServedText]) -> None:
        """End texts nobody waits for any more; their room is free after the step that runs."""
        with self._changed:
            self._cancelled += texts
            self._changed.notify()

    def num_live(self) -> int:
        """Texts that run or wait."""
        with self._changed:
            return len(self._live)

    def max_tokens(self) -> int:
        """Tokens of all texts that the empty room holds."""
        return self._engine.passes.room.num_tokens

    def free_tokens(self) -> int:
        """Room for so many tokens is free now."""
        return self._engine.passes.room.spans.num_free

    def close(self) -> None:
        """End every text and the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        worked = True
        while True:
            with self._changed:
                while not (worked or self._arrived or self._cancelled or self._closing):
                    self._busy_since, self._tokens_before = time.monotonic(), self._engine.num_tokens
                    if not self._changed.wait(_REST_S):
                        self._engine.passes.rest()
                arrived, self._arrived = self._arrived, []
                cancelled, self._cancelled = self._cancelled, []
            for text in arrived:
                self._engine.submit(text)
            for text in cancelled:
                self._engine.cancel(text)
            if self._closing:
                break
            try:
                worked = self._engine.step()
            except Exception as error:  # such as memory that is missing: the texts fail, the next ones may not
                log.warn(f"the running requests have failed: {type(error).__name__}: {error}")
                self._engine.fail_all()
            with self._changed:
                self._live = {text for text in self._live if not text.ended}
        self._engine.fail_all()
        self._engine.passes.close()
