"""Separates the thought of a reasoning model, between <think> and </think>, from its answer."""

from typing import Literal

_BEGIN, _END = "<think>", "</think>"


def split_thought(text: str) -> tuple[str, str]:
    """(thought, answer) of a complete text.

    Thoughts come first; tags after other text belong to the answer. If the chat template wrote <think>, the text has
    </think> alone, at the beginning or end of a line: within a line it is a word of prose. A truncated thought has no
    </think>.
    """
    before, end, after = text.partition(_END)
    ends_line = not after.strip(" \t") or after.lstrip(" \t").startswith("\n")
    begins_line = not before.strip(" \t") or before.rstrip(" \t").endswith("\n")
    is_open = bool(end) and _BEGIN not in before and (begins_line or ends_line)
    thought, answer = ThoughtSplit(is_open=is_open).add_last(text)
    return thought.strip(), answer


def opens_thought(prompt_end: str) -> bool:
    """Whether the prompt ends with <think>, as some chat templates do, so that the model's text begins in a thought."""
    return prompt_end.rstrip().endswith(_BEGIN)


class ThoughtSplit:
    """Splits a text that comes in pieces; `is_open` says that it begins inside a thought (`opens_thought`)."""

    def __init__(self, *, is_open: bool) -> None:
        self._place: Literal["before", "inside", "after"] = "inside" if is_open else "before"
        self._has_thought = is_open
        self._pending = ""  # what may be the beginning of a tag, or white space around one

    def add(self, piece: str) -> tuple[str, str]:
        """(more of the thought, more of the answer); what may be part of a tag is held back until more comes."""
        self._pending += piece
        thought = ""
        while self._place != "after":
            if self._place == "inside":
                part, end, after = self._pending.partition(_END)
                # The longest suffix of `part` that is a prefix of the tag.
                lengths = range(0 if end else min(len(part), len(_END)), 0, -1)
                kept = next((length for length in lengths if part.endswith(_END[:length])), 0)
                thought += part[: len(part) - kept]
                self._pending = after if end else part[len(part) - kept :]
                if not end:
                    return thought, ""
                self._place = "before"
            text = self._pending.lstrip()
            if text.startswith(_BEGIN):
                self._place, self._has_thought, self._pending = "inside", True, text[len(_BEGIN) :]
            elif _BEGIN.startswith(text):  # part of a tag, or nothing yet
                return thought, ""
            else:
                self._place, self._pending = "after", self._pending_answer()
        answer, self._pending = self._pending, ""
        return thought, answer

    def add_last(self, text: str) -> tuple[str, str]:
        """As `add`, of the last piece or a complete text, with all that was held back."""
        (thought, answer), (more, rest) = self.add(text), self.flush()
        return thought + more, answer + rest

    def flush(self) -> tuple[str, str]:
        """What was held back, when no more comes."""
        return (self._pending, "") if self._place == "inside" else ("", self._pending_answer())

    def _pending_answer(self) -> str:
        """What is held back, without the white space between thought and answer."""
        return self._pending.lstrip() if self._has_thought else self._pending
