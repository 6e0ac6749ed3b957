"""Scores conversations with a reward model in this process: what `RewardChat` is for an endpoint, without HTTP."""

import queue
import time
from collections.abc import Sequence

from nemo_vfm.core.errors import DataError, NemoVfmError, UserError
from nemo_vfm.core.network.chat import ChatAnswer
from nemo_vfm.core.network.reward_chat import scores_text
from nemo_vfm.core.types.factory import Factory
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.serve.local_engine import LocalEngine
from nemo_vfm.serve.rewards.conversation_scoring import OutputListener, text_to_score
from nemo_vfm.serve.served_model import ServedModel


class LocalReward(LocalEngine):
    """A reward model in this process. Threads that ask at the same time are answered together.

    Args:
        model: loads it at the first use, such as `served_reward`.
        room_gb: memory for keys and values.
        at_once: conversations that run at once; others wait.
    """

    def __init__(self, *, model: Factory[[], ServedModel], room_gb: float = 2.0, at_once: int = 16) -> None:
        super().__init__(model, room_gb, at_once)

    def say(self, messages: Sequence[Json]) -> ChatAnswer:
        """The scores of the assistant's last message, as JSON: {"attribute": number} in alphabetical order."""
        began, (served, engine) = time.monotonic(), self.load()
        request, found = text_to_score(served, messages), queue.SimpleQueue[list[float] | None]()
        try:
            engine.submit([(request, OutputListener(found.put))])
        except ValueError as error:
            raise DataError(f"{error}; raise room_gb, or shorten the conversation") from None
        if (outputs := found.get()) is None:
            raise NemoVfmError("the model has failed on these messages; the log says why")
        assert served.reward is not None, "another model is refused when it is loaded"
        text, seconds = scores_text(served.reward.scores(outputs)), time.monotonic() - began
        return ChatAnswer(text, "success", served.name, served.revision, len(request.tokens), 0, seconds)

    def identity(self) -> Json:
        """All that the scores depend on but the messages."""
        served = self.load()[0]
        assert served.reward is not None, "another model is refused when it is loaded"
        return ["local reward/1", served.name, served.revision, list(served.reward.names)]

    def longest_answer_tokens(self) -> int:
        """It writes none."""
        return 0

    def require_fit(self, served: ServedModel) -> None:
        if served.reward is None:
            raise UserError(f"{served.name} is not a reward model: it has no scores; load one by served_reward")
