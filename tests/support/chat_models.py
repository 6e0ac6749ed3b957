"""Provides models in this process that answer, fail and refuse on order, for tests of whoever asks them."""

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator

from nemo_vfm.core.network.chat import ChatAnswer


def said(text: str, ending: str = "success", tokens_in: int = 10, tokens_out: int = 5) -> ChatAnswer:
    return ChatAnswer(text, ending, "made", "r1", tokens_in, tokens_out, 0.0)


class MadeChat:
    """Answers "<question>!" to each question, but does first what `script` orders for it, one order an attempt.

    Args:
        script: question -> exceptions to raise and answers to give, in turn.
        always: what to do with every question that has no order; None answers.
        name: part of the identity.
    """

    def __init__(self, script=None, always: Callable[[str], ChatAnswer] | None = None, name: str = "made") -> None:
        self.script: dict[str, Iterator[object]] = {text: iter(orders) for text, orders in (script or {}).items()}
        self.always, self.name, self.longest = always, name, 50
        self.asked: dict[str, int] = defaultdict(int)
        self.at_once = self.max_at_once = 0
        self._lock = threading.Lock()

    def ready(self) -> None:
        """It is."""

    def identity(self):
        return [self.name]

    def model_name(self) -> str:
        return self.name

    def longest_answer_tokens(self) -> int:
        return self.longest

    def say(self, messages) -> ChatAnswer:
        text = messages[-1]["content"]
        with self._lock:
            self.asked[text] += 1
            self.at_once += 1
            self.max_at_once = max(self.max_at_once, self.at_once)
            order = next(self.script.get(text, iter(())), None)
        try:
            if isinstance(order, BaseException):
                raise order
            return order or (self.always(text) if self.always else said(f"{text}!"))
        finally:
            with self._lock:
                self.at_once -= 1
