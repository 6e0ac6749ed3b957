# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Holds the words of a prompt, with places for data."""

import re
from collections.abc import Mapping

_PLACE = re.compile(r"\{([a-z_]+)\}")


class Prompt:
    """Words that are sent to a model.

    Args:
        text: with places such as {topic}; other braces are themselves.
        version: raised with every change of the words: answers to other words are not used again.
    """

    def __init__(self, *, text: str, version: int = 1) -> None:
        if not text.strip() or version < 1:
            raise ValueError(f"a prompt has words and a version of at least 1, got {text[:20]!r} and {version}")
        self.text, self.version = text, version

    def names(self) -> frozenset[str]:
        """Of its places."""
        return frozenset(_PLACE.findall(self.text))

    def filled(self, values: Mapping[str, str]) -> str:
        """The words with data in their places, in one pass: what data say is never a place."""
        return _PLACE.sub(lambda place: values[place[1]], self.text).strip()
