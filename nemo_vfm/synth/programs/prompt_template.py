"""Holds the words of a prompt, with places for data."""

import re
from collections.abc import Mapping

from nemo_vfm.core.network.permission import SentText

_PLACE = re.compile(r"\{([a-z_]+)\}")
_TAG = re.compile(r"</?[a-z_]+>")


class Prompt:
    """Words that are sent to a model.

    Args:
        text: with places such as {topic}; other braces are themselves.
        version: raised with every change of the words: answers to other words are not used again.
    """

    def __init__(self, *, text: SentText, version: int = 1) -> None:
        if not text.strip() or version < 1:
            raise ValueError(
                f"a prompt must not be empty and needs a version of at least 1, got {text[:20]!r} and {version}"
            )
        self.text, self.version = text, version
        self._tags = sorted(set(_TAG.findall(text)))

    def names(self) -> frozenset[str]:
        """Of its places."""
        return frozenset(_PLACE.findall(self.text))

    def fill_shared(self, values: Mapping[str, str]) -> "Prompt":
        """The prompt with what is the same for all data in its places."""
        return Prompt(text=_PLACE.sub(lambda place: values.get(place[1], place[0]), self.text), version=self.version)

    def fill(self, values: Mapping[str, str]) -> str:
        """The words with data in their places, in one pass: what data say is never a place.

        A tag of the prompt's own, such as </answer>, gets a space inside where data hold it: data end nowhere but at
        their end.
        """
        data = {name: values[name] for name in self.names()}
        for tag in self._tags:
            data = {name: value.replace(tag, f"{tag[0]} {tag[1:]}") for name, value in data.items()}
        return _PLACE.sub(lambda place: data[place[1]], self.text).strip()
