"""Declares how a tokenizer is learned from texts and written as a folder that transformers loads."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from nemo_vfm.core.storage.files import write_json
from nemo_vfm.core.types.json_value import Json


@runtime_checkable
class Learner(Protocol):
    """A way to learn a tokenizer."""

    def learn(self, texts: Iterable[str], folder: Path) -> None:
        """Write the tokenizer's files into the folder; equal texts in equal order give equal bytes."""
        ...

    def settings(self) -> Mapping[str, Json]:
        """All that decides about the result besides the texts."""
        ...


def require_tokens(vocab_size: int, names: Sequence[str], least: int) -> None:
    """ValueError where so many tokens cannot hold what they must, or a name stands twice."""
    if vocab_size < least:
        raise ValueError(f"vocab_size is {vocab_size}, but bytes, characters and special tokens already take {least}")
    if len(set(names)) < len(names) or not all(name.strip() for name in names):
        raise ValueError(f"each special token needs its own name, got {', '.join(map(repr, names))}")


def write_config(folder: Path, special: Mapping[str, str], more: Sequence[str]) -> None:
    """tokenizer_config.json, as transformers 4 and 5 read it; `special` maps roles such as eos_token to texts."""
    write_json(folder / "tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast", **special, "additional_special_tokens": list(more),
        "clean_up_tokenization_spaces": False, "model_max_length": int(1e30),
    })  # fmt: skip
