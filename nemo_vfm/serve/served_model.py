"""Describes a model that is ready to be served: its network, its tokenizer, and how its chats are written."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.network.thought import ThoughtSplit, opens_thought
from nemo_vfm.core.types.encoders import Tokenizer
from nemo_vfm.data.chat.chat_format import ChatFormat
from nemo_vfm.data.tokenizers.folder_tokenizer import FolderTokenizer
from nemo_vfm.models.gpt import GPT
from nemo_vfm.models.reward import RewardHead
from nemo_vfm.serve.answer_text import TokenNames
from nemo_vfm.serve.generation_settings import GenerationSettings

_TAG_TOKENS = 16  # at the end of a prompt: <think> and a line's end are at most so many


@dataclass(frozen=True)
class ServedModel:
    """One model.

    Args:
        name: as clients call it.
        model: on its device, in evaluation mode.
        tokenizer: the one that it was trained with.
        context: tokens of a text at most.
        stop: tokens that end a text.
        chat: None where the model has no chat format.
        revision: changes with the weights; empty where it is not known.
        reward: what the outputs of a reward model mean; None for a model that writes text.
        generation: what holds where a request says nothing.
    """

    name: str
    model: GPT
    tokenizer: Tokenizer
    context: int
    stop: frozenset[int]
    chat: ChatFormat | None = None
    revision: str = ""
    reward: RewardHead | None = None
    generation: GenerationSettings = field(default_factory=GenerationSettings)
    decode: Callable[[Sequence[int]], str] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        decode = self.tokenizer.decoder() if isinstance(self.tokenizer, FolderTokenizer) else self.tokenizer.decode
        object.__setattr__(self, "decode", decode)
        if self.tokenizer.vocab_size() > self.model.vocab:
            raise UserError(f"the model has {self.model.vocab} tokens, but the tokenizer has "
                            f"{self.tokenizer.vocab_size()}; they do not belong together")  # fmt: skip

    def thought_split(self, prompt: Sequence[int]) -> ThoughtSplit:
        """What splits the thought from the answer to a prompt, whose template may have begun the thought itself."""
        return ThoughtSplit(is_open=opens_thought(self.decode(prompt[-_TAG_TOKENS:])))

    @cached_property
    def names(self) -> TokenNames:
        """Of its tokens, for log-probabilities."""
        return TokenNames(self.tokenizer)
