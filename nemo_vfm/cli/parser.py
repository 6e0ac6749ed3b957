"""Parses the arguments of a verb; where a user writes a change as an option, it says how changes are written."""

import argparse
import difflib
from typing import NoReturn

_UNKNOWN = "unrecognized arguments: "


class VerbParser(argparse.ArgumentParser):
    """argparse's parser with a hint where a word is not known: other tools take `--model.depth 12`."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong, and the nearest thing that is right."""
        super().error(message + self._hint(message))

    def _hint(self, message: str) -> str:
        word, *rest = message.partition(_UNKNOWN)[2].split() or [""]
        if not word.startswith("-"):
            return ""
        name, _, value = word.lstrip("-").partition("=")
        if close := difflib.get_close_matches(f"--{name}", list(self._option_string_actions), n=1, cutoff=0.8):
            return f"; did you mean {close[0]}?"
        if not any(action.dest == "overrides" for action in self._actions):
            return ""
        value = value or next(iter(rest), "VALUE")
        return f"; a change is written without dashes: {name}={value}"
