"""Defines a form that a prompt asks for, and what fills it."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nemo_vfm.core.types.json_value import Json
from nemo_vfm.synth.embedded.word_draw import WordDraw


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """One form.

    Args:
        pattern: words by which our prompts ask for it.
        answer: makes one from the match, all messages, and a draw; None where they ask for another form after all.
    """

    pattern: re.Pattern[str]
    answer: Callable[[re.Match[str], Sequence[Json], WordDraw], str | None]
