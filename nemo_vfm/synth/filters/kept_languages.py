"""Drops rows with a turn in a language that is not wanted, guessed by py3langid."""

import re
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

from nemo_vfm.synth.filters.turn_texts import Turns, require_turns, turns_of
from nemo_vfm.synth.programs.row_program import Draft

if TYPE_CHECKING:
    from py3langid.langid import LanguageIdentifier

#: All that can be guessed (ISO 639-1).
LANGUAGES = [
    "af", "am", "an", "ar", "as", "az", "ba", "be", "bg", "bn", "br", "bs", "ca", "cs", "cy", "da", "de", "dz", "el",
    "en", "eo", "es", "et", "eu", "fa", "fi", "fo", "fr", "fy", "ga", "gd", "gl", "gu", "ha", "he", "hi", "hr", "ht",
    "hu", "hy", "id", "ig", "is", "it", "ja", "jv", "ka", "kk", "km", "kn", "ko", "ku", "ky", "la", "lb", "lg", "ln",
    "lo", "lt", "lv", "mg", "mk", "ml", "mn", "mr", "ms", "mt", "my", "nb", "ne", "nl", "nn", "oc", "om", "or", "pa",
    "pl", "ps", "pt", "qu", "ro", "ru", "rw", "sa", "se", "si", "sk", "sl", "sn", "so", "sq", "sr", "st", "sv", "sw",
    "ta", "te", "tg", "th", "tk", "tl", "tr", "tt", "ug", "uk", "ur", "uz", "vi", "vo", "wa", "xh", "yo", "zh", "zu",
]  # fmt: skip
_MAX_LETTERS = 5_000  # of a text that are looked at
_MIN_PROBABILITY = 0.5
_CODE = re.compile(r"```.*?(?:```|\Z)|`[^`\n]*`|https?://\S+", re.DOTALL)


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


def language_of(text: str) -> str | None:
    """One of `LANGUAGES`; None where a text is too short, or in none. Blocks of code and addresses are left out."""
    plain = _CODE.sub(" ", text)[:_MAX_LETTERS]
    if not any(letter.isalpha() for letter in plain):
        return None
    language, probability = _identifier().classify(plain)
    return ("nb" if language == "no" else language) if probability >= _MIN_PROBABILITY else None


@cache
def _identifier() -> "LanguageIdentifier":
    """The model, which takes a second to load; the languages that it knows besides have no code of two letters."""
    from py3langid.langid import LanguageIdentifier

    found = LanguageIdentifier.from_model_file("data/model.npz.xz", norm_probs=True)
    found.set_languages(["no" if language == "nb" else language for language in LANGUAGES])
    return found
