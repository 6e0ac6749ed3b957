"""Generates answers with a model from a local folder, by greedy decoding.

Shape letters: B batch, L tokens.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Literal, TypeVar

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.network.thought import ThoughtSplit, opens_thought
from nemo_vfm.core.optional import require
from nemo_vfm.core.precision import Precision
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.models.pretrained import checked_folder, fingerprint_of

I = TypeVar("I")  # noqa: E741 (an item)
Kind = Literal["sees", "reads"]
_TAG_TOKENS = 16  # at the end of a prompt: <think> and a line's end are at most so many


@dataclass(frozen=True, slots=True)
class LocalAnswer:
    """What a model said."""

    text: str  #: without special tokens, and without what a reasoning model thinks
    #: success where it ended by itself, truncated where the limit of tokens cut it
    status: Literal["success", "truncated"]
    tokens_in: int  #: of the conversation, pictures included
    tokens_out: int  #: of the text


@dataclass(frozen=True)
class LocalModel:
    """A model from a local folder, as transformers writes it. Its weights are read at the first `speak`."""

    folder: Path  #: with config.json and safetensors
    kind: Kind  #: `sees` takes pictures in its conversations, `reads` takes text alone
    precision: Precision  #: of weights and arithmetic
    max_tokens: int  #: longest text

    def identity(self) -> Json:
        """All that its words depend on."""
        return [fingerprint_of(self.folder), str(self.precision.resolve()[0]), self.max_tokens]

    def speak(self, conversations: Sequence[Json]) -> list[LocalAnswer]:
        """The next message of each conversation.

        Raises:
            UserError: the folder holds no such model, or memory does not suffice.
        """
        import torch

        model, processor = _load(self.folder, self.kind, self.precision)
        tokenizer = getattr(processor, "tokenizer", processor)
        usual = {"add_generation_prompt": True, "tokenize": True, "return_dict": True, "return_tensors": "pt"}
        if self.kind == "sees":
            inputs = processor.apply_chat_template(list(conversations), **usual, processor_kwargs={"padding": True})
        else:  # what is read was written by others: tokens that end a message are no such tokens in it
            safe = {"padding": True, "sanitize_control_tokens": True}
            inputs = processor.apply_chat_template(list(conversations), **usual, **safe)
        inputs = inputs.to(model.device)
        for name, value in inputs.items():
            if torch.is_floating_point(value):
                inputs[name] = value.to(model.dtype)
        try:
            with torch.inference_mode():
                out_BL = model.generate(**inputs, max_new_tokens=self.max_tokens, do_sample=False, num_beams=1)
        except torch.OutOfMemoryError:
            raise UserError(
                f"{self.folder} needs more memory than is available: lower num_frames or batch_size"
            ) from None
        asked_BL, mask_BL = inputs["input_ids"], inputs["attention_mask"]
        known = model.generation_config.eos_token_id
        ends = {tokenizer.eos_token_id, *(known if isinstance(known, list) else [known])} - {None}
        counts = mask_BL.sum(1).tolist()
        is_open = opens_thought(tokenizer.decode(asked_BL[0, -_TAG_TOKENS:]))  # of all: they are filled up on the left
        found = []
        for row_L, tokens_in in zip(out_BL, counts, strict=True):
            # Up to the first token that ends; what follows it is padding to the longest answer of the batch.
            tokens = row_L[asked_BL.shape[1] :].tolist()
            stop = next((place for place, token in enumerate(tokens) if token in ends), None)
            own = tokens[:stop]
            _, text = ThoughtSplit(is_open=is_open).add_last(tokenizer.decode(own, skip_special_tokens=True))
            found.append(LocalAnswer(text, "truncated" if stop is None else "success", tokens_in, len(own)))
        return found


def groups(items: Iterable[I], size: int) -> Iterator[list[I]]:
    """So many at a time; the last may be fewer."""
    rest = iter(items)
    while group := list(islice(rest, size)):
        yield group


@lru_cache(maxsize=1)
def _load(folder: Path, kind: Kind, precision: Precision) -> Json:
    """(model, processor); one at a time, since two may not fit."""
    from nemo_vfm.core.device import device

    transformers = require("transformers", purpose="Captioning by a local model")
    model_class, processor_class = {
        "sees": (transformers.AutoModelForImageTextToText, transformers.AutoProcessor),
        "reads": (transformers.AutoModelForCausalLM, transformers.AutoTokenizer),
    }[kind]
    local = {"local_files_only": True, "trust_remote_code": False}
    try:
        processor = processor_class.from_pretrained(checked_folder(folder), **local)
        model = model_class.from_pretrained(folder, use_safetensors=True, dtype=precision.resolve()[0], **local)
    except (ValueError, OSError, KeyError, ImportError) as error:
        raise UserError(f"{folder} cannot be loaded as a model that {kind}: {error}") from error
    tokenizer = getattr(processor, "tokenizer", processor)
    tokenizer.padding_side = "left"  # else a shorter question of a batch would be answered after padding
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    if not getattr(processor, "chat_template", None):
        raise UserError(f"{folder} has no chat template, so it cannot be prompted; use an instruction-tuned model")
    return model.to(device()).eval(), processor
