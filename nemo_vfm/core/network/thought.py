"""Splits what a reasoning model thinks, between <think> and </think>, from what it says."""

from typing import Literal

_BEGIN, _END = "<think>", "</think>"


def split_thought(text: str) -> tuple[str, str]:
    """(what the model thinks, what it says).

    A thought stands at the beginning; tags further back are part of what is said. Behind a template that writes <think>
    itself, an answer has the end of a thought alone; one in the middle of a line is a word of prose. A thought that was
    cut has no end.
    """
    before, end, behind = text.partition(_END)
    is_last = not behind.strip(" \t") or behind.lstrip(" \t").startswith("\n")
    is_first = not before.strip(" \t") or before.rstrip(" \t").endswith("\n")
    is_open = bool(end) and _BEGIN not in before and (is_first or is_last)
    thought, said = ThoughtSplit(is_open=is_open).finish(text)
    return thought.strip(), said


def opens_thought(prompt_end: str) -> bool:
    """Whether a chat template has begun the model's thought already: some end with <think>."""
    return prompt_end.rstrip().endswith(_BEGIN)


class ThoughtSplit:
    """A text that comes in pieces; it is open where it begins inside of a thought, behind a prompt's <think>."""

    def __init__(self, *, is_open: bool) -> None:
        self._place: Literal["before", "inside", "behind"] = "inside" if is_open else "before"
        self._has_thought = is_open
        self._waiting = ""  # what may be the beginning of a tag, or white space around one

    def add(self, piece: str) -> tuple[str, str]:
        """(what of the thought is certain now, and of what is said)."""
        self._waiting += piece
        thought = ""
        while self._place != "behind":
            if self._place == "inside":
                part, end, behind = self._waiting.partition(_END)
                # The longest end of the part with which the tag begins.
                lengths = range(0 if end else min(len(part), len(_END)), 0, -1)
                kept = next((length for length in lengths if part.endswith(_END[:length])), 0)
                thought += part[: len(part) - kept]
                self._waiting = behind if end else part[len(part) - kept :]
                if not end:
                    return thought, ""
                self._place = "before"
            text = self._waiting.lstrip()
            if text.startswith(_BEGIN):
                self._place, self._has_thought, self._waiting = "inside", True, text[len(_BEGIN) :]
            elif _BEGIN.startswith(text):  # or there is nothing yet
                return thought, ""
            else:
                self._place, self._waiting = "behind", self._pending_text()
        said, self._waiting = self._waiting, ""
        return thought, said

    def finish(self, text: str) -> tuple[str, str]:
        """The same of the last piece, with what waited for more: of all, where it is the only one."""
        (thought, said), (more, rest) = self.add(text), self.rest()
        return thought + more, said + rest

    def rest(self) -> tuple[str, str]:
        """What waited for more, at the end."""
        return (self._waiting, "") if self._place == "inside" else ("", self._pending_text())

    def _pending_text(self) -> str:
        """What waits, without the white space behind a thought."""
        return self._waiting.lstrip() if self._has_thought else self._waiting
