"""Judges whether each sentence of a little story follows the grammar and agrees with those before it.

The stories are those of `synth/make_stories.py`. Sentences must also agree with earlier ones: who is a she, which
colour a thing has, how many are left, which place someone leaves.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

SHE: Final = ("Mia", "Ada", "Lena", "Rosa", "Nora", "Iris")
HE: Final = ("Tom", "Ben", "Otto", "Emil", "Paul", "Hugo")
COLOURS: Final = ("red", "blue", "green", "yellow", "white", "black")
THINGS: Final = ("ball", "kite", "drum", "hat", "boat", "bell", "cup", "book")
FRUITS: Final = {"apple": "apples", "pear": "pears", "plum": "plums", "nut": "nuts", "fig": "figs"}
PLACES: Final = ("park", "river", "market", "forest", "harbour", "mill")
TIMES: Final = ("morning", "day", "evening")
HIDES: Final = ("under the bed", "on the shelf", "behind the door", "into the box")
NUMBERS: Final = ("no", "one", "two", "three", "four", "five", "six", "seven",
                   "eight", "nine", "ten", "eleven", "twelve")  # fmt: skip


def count_text(number: int, fruit: str) -> str:
    """The words for so many of them, such as "one pear" and "no pears"."""
    return f"{NUMBERS[number]} {fruit if number == 1 else FRUITS[fruit]}"


def pronouns(name: str) -> tuple[str, str]:
    """(she, her) or (he, him)."""
    return ("she", "her") if name in SHE else ("he", "him")


@dataclass(slots=True)
class Facts:
    """What has been said so far; an empty text where it has not."""

    hero: str = ""
    friend: str = ""
    place: str = ""
    owned: dict[str, str] = field(default_factory=dict)  #: whose -> "red ball"
    fruit: str = ""
    number: int = 0
    home: bool = False
    ended: bool = False


@dataclass(frozen=True, slots=True)
class GrammarVerdict:
    """The judgement of a text."""

    sentences: int  #: how many whole ones it has
    right: int  #: how many of them are right
    wrong: tuple[str, ...]  #: for each other one, why
    ended: bool  #: whether the last whole sentence ends a story


def judge(text: str) -> GrammarVerdict:
    """Read a story from its beginning; what stands after the last full stop is not judged."""
    facts, wrong = Facts(), []
    sentences = [one.strip() for one in re.findall(r"[^.]*\.", text)]
    for sentence in sentences:
        reason = "the story has ended" if facts.ended else "it is not a sentence of this grammar"
        for pattern, form in () if facts.ended else _FORMS:
            if found := pattern.fullmatch(sentence):
                said = found.groupdict()
                reason = _facts_to_keep(said, facts) or _record_fact(form, said, facts)
                break
        if reason:
            wrong.append(f"{sentence!r}: {reason}")
    return GrammarVerdict(len(sentences), len(sentences) - len(wrong), tuple(wrong), facts.ended)


def _facts_to_keep(said: Mapping[str, str], facts: Facts) -> str:
    """What every sentence must keep: names, pronouns and the kind of fruit."""
    she, her = pronouns(facts.hero) if facts.hero else ("", "")
    for what, word, known in (
        ("hero", said.get("hero"), facts.hero), ("friend", said.get("friend"), facts.friend),
        ("pronoun", said.get("she"), she), ("pronoun", said.get("She"), she.capitalize()),
        ("pronoun", said.get("her"), her),
    ):  # fmt: skip
        if word is not None and word != known:
            return f"the {what} is {known}" if known else f"there is no {what} yet"
    kind = said.get("fruits")
    if kind is not None and facts.fruit and kind not in (facts.fruit, FRUITS[facts.fruit]):
        return f"it was {FRUITS[facts.fruit]}"
    if kind is not None and (kind in FRUITS) != (said["number"] == "one"):
        return f"{said['number']} and {kind} do not agree"
    return ""


def _record_fact(form: str, said: Mapping[str, str], facts: Facts) -> str:
    """Keep what a sentence says; why it cannot be so, or an empty text."""
    match form:
        case "begins":
            if facts.hero:
                return "the story has begun before"
            facts.hero, facts.place = said["new"], said["place"]
        case "owns":
            if facts.fruit:
                return "it was said before"
            facts.owned[facts.hero] = said["owned"]
            facts.fruit = next(one for one, many in FRUITS.items() if said["fruits"] in (one, many))
            facts.number = NUMBERS.index(said["number"])
        case "meets":
            if facts.friend or said["new"] == facts.hero:
                return "they had met before" if facts.friend else "that is who went"
            facts.friend = said["new"]
            facts.owned[facts.friend] = said["owned"]
        case "loses" | "gains":
            if not facts.fruit or facts.home:
                return "nobody had any" if not facts.fruit else "that was before going home"
            by = NUMBERS.index(said["number"]) * (1 if form == "gains" else -1)
            before, facts.number = facts.number, min(max(0, facts.number + by), len(NUMBERS) - 1)
            return f"there were only {count_text(before, facts.fruit)}" if before + by < 0 else ""
        case "counts":
            if not facts.fruit:
                return "nobody had any"
            return "" if said["number"] == NUMBERS[facts.number] else f"it should be {NUMBERS[facts.number]}"
        case "swaps":
            if not {facts.hero, facts.friend} <= facts.owned.keys():
                return "there was nothing to swap"
            mine, theirs = facts.owned[facts.hero], facts.owned[facts.friend]
            facts.owned = {facts.hero: theirs, facts.friend: mine}
            return "" if said["owned"] == theirs else f"{facts.friend} had the {theirs}"
        case "goes home":
            if facts.home:
                return "that was before"
            facts.home = True
            return "" if said["place"] == facts.place else f"it was the {facts.place}"
        case "ends":
            known, facts.ended = facts.owned.get(facts.hero), True
            if known is None or not facts.home:
                return "there was nothing to put away" if known is None else "nobody is at home yet"
            return "" if said["owned"] == known else f"{facts.hero} had the {known}"
    return ""


def _form(sentence: str) -> re.Pattern[str]:
    """A sentence with names of words in brackets, as a pattern."""
    owned = tuple(f"{colour} {thing}" for colour in COLOURS for thing in THINGS)
    words = {
        **dict.fromkeys(("hero", "friend", "new"), SHE + HE), "she": ("she", "he"), "She": ("She", "He"),
        "her": ("her", "him"), "place": PLACES, "time": TIMES, "hide": HIDES, "number": NUMBERS, "owned": owned,
        "fruits": (*FRUITS.values(), *FRUITS),
    }  # fmt: skip
    pattern = re.escape(sentence).replace(r"\{", "{").replace(r"\}", "}").replace(r"\ ", " ")
    return re.compile(re.sub(r"\{(\w+)\}", lambda found: f"(?P<{found[1]}>{'|'.join(words[found[1]])})", pattern))


_FORMS: Final[tuple[tuple[re.Pattern[str], str], ...]] = (
    (_form("One {time} {new} went to the {place}."), "begins"),
    (_form("{She} had a {owned} and {number} {fruits}."), "owns"),
    (_form("There {she} met {new}, who had a {owned}."), "meets"),
    (_form("{She} ate {number} {fruits}."), "loses"),
    (_form("{She} gave {friend} {number} {fruits}."), "loses"),
    (_form("{friend} gave {her} {number} {fruits}."), "gains"),
    (_form("Now {hero} had {number} {fruits}."), "counts"),
    (_form("{hero} and {friend} swapped, so {she} had the {owned}."), "swaps"),
    (_form("Then {she} went home from the {place}."), "goes home"),
    (_form("At home {hero} put the {owned} {hide}."), "ends"),
)
