"""Defines what a model is asked and how that ends: with a reply, or with a failure that has a reason."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from nemo_vfm.core.network.chat import ChatAnswer
from nemo_vfm.core.storage.files import sha256_text
from nemo_vfm.core.types.json_value import Json

Messages = Sequence[Json]


class ChatModel(Protocol):
    """A model that answers messages: `Chat` for an endpoint, a model in this process, or a made one."""

    def ready(self) -> None:
        """Raise UserError where nothing could be asked."""
        ...

    def say(self, messages: Messages) -> ChatAnswer:
        """One attempt at an answer; threads call it at the same time.

        Raises:
            EndpointBusy, EndpointFault: the same messages may be tried again.
            UserError: no question will be answered.
            NemoVfmError: this question has no answer.
        """
        ...

    def identity(self) -> Json:
        """All that the answers depend on but the messages: model and sampling."""
        ...


@runtime_checkable
class HasPlace(Protocol):
    """A model that others may ask, too."""

    def place(self) -> str:
        """Names service and model; whoever asks under the same name shares one pace."""
        ...


@runtime_checkable
class BudgetedModel(Protocol):
    """A model whose cost can be told before it is asked."""

    def model_name(self) -> str:
        """As its service calls it."""
        ...

    def longest_answer_tokens(self) -> int:
        """At most so many tokens."""
        ...


@runtime_checkable
class FreeModel(Protocol):
    """What answers as a model does and takes neither tokens nor money, such as a program of our own."""

    def is_free(self) -> bool:
        """Whether no budget needs to know of it."""
        ...


@dataclass(frozen=True, slots=True)
class Question:
    """One question to a model."""

    #: as OpenAI's chat has them, or what makes them when it is their turn: pictures are large
    messages: Messages | Callable[[], Messages]
    index: int = 0  #: its place in the caller's order. Replies come as they are ready.
    sample: int = 0  #: which answer to the same messages, from 0
    template: str = ""  #: version of the template that made the messages
    key: str = ""  #: what its answer is kept under; empty takes a hash of all the above but `index`, and of the model
    model: str = ""  #: which of the asker's models is asked; empty is its first

    def __post_init__(self) -> None:
        if callable(self.messages) and not self.key:
            raise ValueError("messages that are created later cannot be hashed now: give the question a key")

    def build_messages(self) -> Messages:
        """The messages."""
        return self.messages() if callable(self.messages) else self.messages


@dataclass(frozen=True, slots=True)
class Reply:
    """A question's answer."""

    question: Question  #: as it was asked
    said: ChatAnswer  #: what the model said; `truncated` is an answer, too
    key: str  #: what it is kept under
    recalled: bool = False  #: whether it was answered before, and nobody was asked now


@dataclass(frozen=True, slots=True)
class Failure:
    """A question without an answer. It is not kept: the next run asks again."""

    question: Question  #: as it was asked
    reason: str  #: a sentence, without secrets
    key: str  #: what an answer would be kept under
    blocked: bool = False  #: whether the model declined


def answer_key(identity: Json, question: Question) -> str:
    """64 hexadecimal digits: of model and sampling, messages, number of the sample, and version of the template.

    Args:
        identity: see `ChatModel.identity`; it may take time, so whoever has many questions asks for it once.
        question: with messages as they are sent.
    """
    if question.key:
        return question.key
    asked = [identity, question.build_messages(), question.sample, question.template]
    return sha256_text(json.dumps(asked, sort_keys=True, allow_nan=False))
