"""Prepares a conversation for a reward model, and takes the scores from the engine."""

from collections.abc import Callable, Mapping, Sequence

from nemo_vfm.core.errors import DataError
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.language.token_choice import Choice
from nemo_vfm.serve.continuous.text_request import TextEnding, TextListener, TextRequest
from nemo_vfm.serve.served_model import ServedModel

_NO_CHOICE = Choice(temperature=0)


def text_to_score(served: ServedModel, messages: Sequence[Mapping[str, Json]]) -> TextRequest:
    """What the engine reads: a conversation up to the token whose state is scored."""
    assert served.chat is not None and served.reward is not None, "served_reward gives both"
    if (role := messages[-1].get("role") if messages else "none") != "assistant":
        raise DataError("the answer of the assistant is scored, so the last message must be the assistant's; it has "
                        f"the role {str(role)[:40]}")  # fmt: skip
    tokens = served.reward.scored_prefix(served.chat.tokens(messages, add_generation_prompt=False))
    if len(tokens) > served.context:
        raise DataError(f"a conversation of {len(tokens):,} tokens exceeds the model's context of {served.context:,}")
    return TextRequest(tokens, 0, _NO_CHOICE, 0, wants_outputs=True)


class OutputListener(TextListener):
    """Takes the head's outputs, and publishes them once; None where the text has failed or nobody waits for it."""

    def __init__(self, publish: Callable[[list[float] | None], None]) -> None:
        self._publish = publish
        self._outputs: list[float] | None = None

    def outputs(self, values: list[float]) -> None:
        self._outputs = values

    def end(self, ending: TextEnding) -> None:
        self._publish(self._outputs)
