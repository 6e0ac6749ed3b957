"""Guesses the language of a text by its script, by frequent words and by letters that few languages have."""

import re
import unicodedata
from collections import Counter
from functools import cache

from nemo_vfm.dedup.texts.normalize_text import words
from nemo_vfm.synth.filters.stop_words import ALONE, LETTERS, WORDS

#: All that can be guessed (ISO 639-1).
LANGUAGES = sorted({"zh", "ja", *ALONE.values(), *(language for group in WORDS.values() for language in group)})
_MOST_LETTERS = 5_000  # of a text that are looked at
_LEAST_SCORE, _LEAST_LEAD = 0.1, 1.15
_LETTER_WEIGHT = 0.5  # of a word with a letter of few languages, beside 1 for a frequent word
_WEIGHTS = {"CJK": 3, "HIRAGANA": 3, "KATAKANA": 3, "HANGUL": 3}  # one of their signs says as much as so many letters
_CODE = re.compile(r"```.*?(?:```|\Z)|`[^`\n]*`|https?://\S+", re.DOTALL)


def language_of(text: str) -> str | None:
    """One of `LANGUAGES`; None where a text is too short, in none of them, or between two.

    Blocks of code and addresses are left out. A script that several languages share without our lists for them is
    taken for its largest: Devanagari for Hindi, for instance.
    """
    plain = _CODE.sub(" ", text)[:_MOST_LETTERS]
    scripts = Counter(_script(letter) for letter in plain if letter.isalpha())
    if not scripts:
        return None
    script = max(scripts, key=lambda name: scripts[name] * _WEIGHTS.get(name, 1))
    if script in ("CJK", "HIRAGANA", "KATAKANA"):
        kana = scripts["HIRAGANA"] + scripts["KATAKANA"]
        return "ja" if 10 * kana > scripts["CJK"] else "zh"
    return _by_words(plain, script) if script in WORDS else ALONE.get(script)


@cache
def _script(letter: str) -> str:
    """The first word of its name in Unicode: LATIN, CYRILLIC, CJK and so on."""
    return unicodedata.name(letter, "?").split()[0]


def _by_words(text: str, script: str) -> str | None:
    """The language whose words are the largest share; a word of several languages counts for each in part."""
    scores, found = dict.fromkeys(WORDS[script], 0.0), words(text)
    for word in found:
        for language, weight in _weights(script).get(word, {}).items():
            scores[language] += weight
        for letter in set(word) & _rare(script).keys():
            for language in _rare(script)[letter]:
                scores[language] += _LETTER_WEIGHT / len(_rare(script)[letter])
    *_, second, best = sorted(scores, key=lambda language: scores[language])
    clear = scores[best] > _LEAST_LEAD * scores[second]
    return best if clear and scores[best] >= _LEAST_SCORE * len(found) else None


@cache
def _weights(script: str) -> dict[str, dict[str, float]]:
    owners: dict[str, list[str]] = {}
    for language, line in WORDS[script].items():
        for word in set(line.split()):
            owners.setdefault(word, []).append(language)
    return {word: {one: 1 / len(own) ** 0.5 for one in own} for word, own in owners.items()}


@cache
def _rare(script: str) -> dict[str, list[str]]:
    owners: dict[str, list[str]] = {}
    for language, letters in LETTERS[script].items():
        for letter in letters:
            owners.setdefault(letter, []).append(language)
    return owners
