"""Drops rows with a turn in a language that is not wanted."""

from collections.abc import Sequence

from nemo_vfm.synth.filters.language_guess import LANGUAGES, language_of
from nemo_vfm.synth.filters.turn_texts import Turns, require_turns, turns_of
from nemo_vfm.synth.programs.row_program import Draft


class KeptLanguages:
    """Keeps rows whose turns are in these languages, as `language_of` guesses them.

    Args:
        languages: ISO 639-1, such as `[en, de]`.
        turns: that are checked, each by itself.
        keep_unknown: whether a turn of unknown language stays: a short one, or one of code alone.
    """

    def __init__(self, *, languages: Sequence[str], turns: Turns = "all", keep_unknown: bool = True) -> None:
        require_turns(turns)
        if not languages or (unknown := sorted(set(languages) - set(LANGUAGES))):
            said = (
                f"{unknown[0]!r} is not one of the languages that can be recognised"
                if languages
                else "languages is empty"
            )
            raise ValueError(f"{said}; choose from {', '.join(LANGUAGES)}")
        self.languages, self.turns, self.keep_unknown = frozenset(languages), turns, keep_unknown

    def broken_rule(self, draft: Draft) -> str | None:
        """See `RowFilter`."""
        for text in turns_of(draft, self.turns):
            language = language_of(text)
            if language is None and not self.keep_unknown:
                return "language not recognized"
            if language is not None and language not in self.languages:
                return f"language {language}"
        return None
