# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Asks for lists, and once more for those whose answer is none."""

from collections.abc import Sequence

from nemo_vfm.synth.pipelines.answer_list import items_of
from nemo_vfm.synth.pipelines.row_program import Ask, Program

_MOST_TRIES = 3


def lists_of(asks: Sequence[Ask], most: int) -> Program[list[list[str]]]:
    """The list of each question, of at most so many items; empty where no answer was a list.

    A model whose answer is no list is shown it, and asked by the prompt `again`, which has a place {count}.
    """
    found: list[list[str]] = [[] for _ in asks]
    open_asks = dict(enumerate(asks))
    for _ in range(_MOST_TRIES):
        if not open_asks:
            break
        answers = yield list(open_asks.values())
        for (place, ask), answer in zip(list(open_asks.items()), answers, strict=True):
            if isinstance(answer, str) and (items := items_of(answer, most)):
                found[place] = items
                del open_asks[place]
            else:
                said = answer if isinstance(answer, str) else "(nothing)"
                before = (*ask.before, ask, {"role": "assistant", "content": said})
                open_asks[place] = Ask("again", {"count": str(most)}, before)
    return found
