# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Answers prompts without a model: deterministic, in the form that is asked for, and wrong at a stated rate."""

import json
import re
from collections.abc import Sequence
from hashlib import sha256

from nemo_vfm.core.network.chat import Said
from nemo_vfm.core.types.json_value import Json

_LIST = re.compile(r"list of (\d{1,3})")
_THINGS = ("rivers", "bridges", "clocks", "markets", "forests", "radios", "gardens", "maps", "engines", "harbours",
           "libraries", "glaciers", "kites", "looms", "orchards", "telescopes")  # fmt: skip
_KINDS = ("old", "small", "quiet", "northern", "wooden", "modern", "shared", "hidden", "public", "early", "distant",
          "common", "floating", "paper", "coastal", "winter")  # fmt: skip
_DEEDS = ("change", "shape", "support", "limit", "explain", "outlast", "follow", "need")


class EmbeddedResponder:
    """A responder for recipes that must run without a key or a server.

    Args:
        error_rate: share of questions that get a wrong answer: nothing at all, or prose in the place of a list.
        name: as rows say it.
    """

    def __init__(self, *, error_rate: float = 0.02, name: str = "embedded/1") -> None:
        if not 0 <= error_rate <= 1:
            raise ValueError(f"error_rate is a share from 0 to 1, got {error_rate}")
        self.error_rate, self.name = error_rate, name

    def ready(self) -> None:
        """It always is."""

    def identity(self) -> Json:
        """See `ChatModel`."""
        return [self.name, self.error_rate]

    def say(self, messages: Sequence[Json]) -> Said:
        """A made answer, a function of the messages alone."""
        asked = str(messages[-1]["content"])
        draw = _Draw(json.dumps(list(messages), sort_keys=True))
        wrong = draw.share() < self.error_rate
        wanted = _LIST.search(asked)
        if wrong and (wanted is None or draw.share() < 0.5):
            text = ""
        elif wanted is None or wrong:
            text = f"{draw.sentence()} {draw.sentence()}"
        else:
            make = draw.question if "questions" in asked else draw.thing
            text = "\n".join(f"{number}. {make()}" for number in range(1, int(wanted[1]) + 1))
        return Said(text, "success", self.name, "", len(asked.split()), len(text.split()), 0.0)


class _Draw:
    """Choices that follow from a text."""

    def __init__(self, text: str) -> None:
        self._text, self._count = text, 0

    def _number(self) -> int:
        self._count += 1
        return int.from_bytes(sha256(f"{self._count} {self._text}".encode()).digest()[:6], "big")

    def share(self) -> float:
        return self._number() / 2**48

    def thing(self) -> str:
        return f"{_KINDS[self._number() % len(_KINDS)]} {_THINGS[self._number() % len(_THINGS)]}"

    def question(self) -> str:
        return f"How do {self.thing()} {_DEEDS[self._number() % len(_DEEDS)]} {self.thing()}?"

    def sentence(self) -> str:
        deed = _DEEDS[self._number() % len(_DEEDS)]
        return f"{self.thing().capitalize()} {deed} {self.thing()} in {1800 + self._number() % 200}."
