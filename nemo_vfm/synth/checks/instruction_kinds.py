"""Draws instructions that a program can check, in our own words, and says whether an answer obeys them.

The idea, and most kinds, are those of Zhou et al. 2023 (2311.07911), section 2.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from nemo_vfm.core.errors import UserError
from nemo_vfm.synth.checks import answer_measures as measure
from nemo_vfm.synth.checks.answer_measures import occurrences, words

Values = Mapping[str, Any]
#: Plain words that fit into an answer about most things.
WORDS = (
    "balance", "bridge", "careful", "change", "choice", "clear", "common", "corner", "curious", "detail", "distance",
    "early", "effort", "evening", "example", "familiar", "garden", "gentle", "habit", "harbour", "honest", "journey",
    "kitchen", "language", "lesson", "market", "measure", "memory", "modern", "morning", "mountain", "music", "narrow",
    "neighbour", "notice", "ordinary", "patient", "pattern", "promise", "question", "quiet", "reason", "river",
    "season", "secret", "shadow", "signal", "simple", "steady", "story", "summer", "surface", "teacher", "thread",
    "travel", "useful", "valley", "village", "weather", "window", "winter", "wonder",
)  # fmt: skip
STARTS = ("Here is how I see it", "Let me begin with the main point", "To put it plainly", "In a few words")
ENDS = ("That is all for now.", "I hope you find this useful.", "Tell me if you need more.", "The rest is up to you.")
CHOICES = (("Yes, certainly.", "No, certainly not.", "That depends."), ("I agree.", "I disagree.", "I cannot say."))
_RARE, _FREQUENT = "jkqvxzwbp", "aeiourstlnmdc"
_SHAPED = frozenset({"paragraphs", "paragraph_start", "divided_parts", "two_responses"})
_WHOLE = frozenset({"json_object", "quotation", "start_phrase", "repeat_prompt"})
_LINES = frozenset({"bullets", "sections", "title", "postscript"})
#: Draws of one kind before another is tried: its values may not fit those already drawn.
_TRIES = 20


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction, as it is said and as it is checked."""

    kind: str  #: of `KINDS`
    values: Mapping[str, Any]  #: what it asks for, as JSON
    text: str  #: the sentence

    def holds(self, answer: str) -> bool:
        """Whether an answer obeys; one without a word never does."""
        return bool(words(answer)) and KINDS[self.kind].holds(answer, self.values)

    def row(self) -> dict[str, Any]:
        """As JSON, for the row that it belongs to; `instruction_of` reads it."""
        return {"kind": self.kind, "values": dict(self.values), "text": self.text}


def draw(
    rng: Random, count: int, *, prompt: str = "", bank: Sequence[str] = WORDS, kinds: Collection[str] | None = None
) -> list[Instruction]:
    """Instructions, each of another kind, for which there is an answer that obeys all.

    Args:
        rng: the same state gives the same instructions.
        count: how many; there are fewer where no other kind fits those drawn.
        prompt: that they will follow. One in several lines, and none, is never asked to be repeated.
        bank: at least four words, without spaces, that an answer may be asked to use or to avoid.
        kinds: to draw from; None means all.

    Raises:
        UserError: a kind is none of ours, or `bank` is too small.
    """
    if unknown := {*(kinds or ())} - {*KINDS}:
        raise UserError(f"there is no kind of instruction {sorted(unknown)[0]!r}; known are {', '.join(KINDS)}")
    if len({*bank}) < 4:
        raise UserError(f"a bank of {len({*bank})} words is too small to draw instructions from; give at least 4")
    names = [name for name in KINDS if kinds is None or name in kinds]
    if not prompt.strip() or "\n" in prompt.strip():
        names = [name for name in names if name != "repeat_prompt"]
    rng.shuffle(names)
    found: list[Instruction] = []
    for name in names:
        if len(found) == count:
            break
        for _ in range(_TRIES):
            values = KINDS[name].draw(rng, bank, prompt)
            # The prompt is never repeated in a wording.
            quoted = {place: _value_text(place, value) for place, value in values.items()}
            drawn = Instruction(name, values, rng.choice(KINDS[name].wordings).format_map(quoted))
            if hold_together([*found, drawn]):
                found.append(drawn)
                break
    return found


@dataclass(frozen=True, slots=True)
class InstructionKind:
    """A kind of instruction."""

    #: its values, from a generator, words to choose from, and the prompt that it will follow
    draw: Callable[[Random, Sequence[str], str], dict[str, Any]]
    #: sentences with places for the values. Those of texts are quoted when they are filled in.
    wordings: tuple[str, ...]
    holds: Callable[[str, Values], bool]  #: whether an answer, not empty, obeys
    excludes: frozenset[str] = frozenset()  #: kinds that cannot hold beside it
    #: texts that any answer that obeys contains
    fixed: Callable[[Values], list[str]] = field(default=lambda values: [])


def _count(low: int, high: int, step: int = 1) -> Callable[[Random, Sequence[str], str], dict[str, Any]]:
    return lambda rng, words, prompt: {"count": rng.randrange(low, high + 1, step)}


def _one(name: str, choices: Sequence[Any]) -> Callable[[Random, Sequence[str], str], dict[str, Any]]:
    return lambda rng, words, prompt: {name: rng.choice(choices)}


def _avoidable_words(rng: Random, words: Sequence[str], prompt: str) -> dict[str, Any]:
    """Not those that the prompt is about."""
    free = [word for word in words if not measure.occurrences(word, prompt)] or list(words)
    return {"words": rng.sample(free, min(rng.randint(2, 4), len(free)))}


def _two_parts(answer: str, values: Values) -> bool:
    parts = [part.strip() for part in answer.split("******")]
    parts = parts[int(not parts[0]) : len(parts) - int(len(parts) > 1 and not parts[-1])]
    return len(parts) == 2 and all(parts) and parts[0] != parts[1]


KINDS: dict[str, InstructionKind] = {
    "min_words": InstructionKind(
        _count(60, 300, 20),
        ("Write at least {count} words.", "Use no fewer than {count} words.",
         "Make it {count} words or longer."),
        lambda a, v: len(measure.words(a)) >= v["count"],
    ),
    "max_words": InstructionKind(
        _count(100, 300, 20),
        ("Write at most {count} words.", "Stay within {count} words.", "Do not go beyond {count} words."),
        lambda a, v: len(measure.words(a)) <= v["count"],
        frozenset({"repeat_prompt"}),
    ),
    "min_sentences": InstructionKind(
        _count(3, 10),
        ("Use {count} sentences or more.", "Your reply needs at least {count} sentences."),
        lambda a, v: measure.num_sentences(a) >= v["count"],
    ),
    "max_sentences": InstructionKind(
        _count(4, 12),
        ("Use no more than {count} sentences.", "Say it in at most {count} sentences."),
        lambda a, v: measure.num_sentences(a) <= v["count"],
        _SHAPED | _LINES | {"repeat_prompt"},
    ),
    "paragraphs": InstructionKind(
        _count(2, 6),
        ("Write exactly {count} paragraphs, with a blank line between them.",
         "Divide the text by blank lines into {count} paragraphs, no more and no fewer."),
        lambda a, v: len(measure.paragraphs(a)) == v["count"],
        _SHAPED | {"json_object", "repeat_prompt"},
    ),
    "paragraph_start": InstructionKind(
        lambda rng, words, prompt: {"count": (count := rng.randint(2, 5)), "place": rng.randint(1, count),
                                    "word": rng.choice(words)},
        ("Write {count} paragraphs with a blank line between them; the first word of paragraph {place} is {word}.",
         "There are to be {count} paragraphs, parted by blank lines, and number {place} opens with the word {word}."),
        lambda a, v: len(found := measure.paragraphs(a)) == v["count"]
        and measure.first_word(found[v["place"] - 1]) == v["word"].lower(),
        _SHAPED | _WHOLE,
        lambda v: [v["word"]],
    ),
    "divided_parts": InstructionKind(
        _count(2, 5),
        ("Give {count} parts, and put a line that is only *** between two of them.",
         "Split your text into exactly {count} parts by lines that hold *** and nothing else."),
        lambda a, v: len(parts := measure.divided_parts(a)) == v["count"] and all(parts),
        _SHAPED | {"json_object", "repeat_prompt"},
    ),
    "include_words": InstructionKind(
        lambda rng, words, prompt: {"words": rng.sample(list(words), rng.randint(2, min(4, len(words))))},
        ("Use each of these words: {words}.", "The words {words} must all occur in it."),
        lambda a, v: all(measure.occurrences(word, a) for word in v["words"]),
        fixed=lambda v: list(v["words"]),
    ),
    "avoid_words": InstructionKind(
        _avoidable_words,
        ("Use none of these words: {words}.", "Leave out the words {words}."),
        lambda a, v: not any(measure.occurrences(word, a) for word in v["words"]),
    ),
    "word_frequency": InstructionKind(
        lambda rng, words, prompt: {"word": rng.choice(words), "count": rng.randint(2, 4)},
        ("Use the word {word} at least {count} times.", "The word {word} must occur {count} times or more."),
        lambda a, v: measure.occurrences(v["word"], a) >= v["count"],
        fixed=lambda v: [v["word"]] * v["count"],
    ),
    "min_letters": InstructionKind(
        lambda rng, words, prompt: {"letter": rng.choice(_FREQUENT), "count": rng.randint(5, 20)},
        ("The letter {letter} must occur at least {count} times.",
         "Use the letter {letter} no fewer than {count} times."),
        lambda a, v: a.lower().count(v["letter"].lower()) >= v["count"],
    ),
    "max_letters": InstructionKind(
        lambda rng, words, prompt: {"letter": rng.choice(_RARE), "count": rng.randint(4, 9)},
        ("The letter {letter} may occur at most {count} times.", "Use the letter {letter} {count} times or less."),
        lambda a, v: a.lower().count(v["letter"].lower()) <= v["count"],
        frozenset({"repeat_prompt"}),
    ),
    "json_object": InstructionKind(
        lambda rng, words, prompt: {},
        ("Answer with one JSON object and nothing around it.", "The whole answer must be a single valid JSON object."),
        lambda a, v: measure.is_json_object(a),
        _SHAPED | _WHOLE | _LINES | {"end_phrase", "highlights", "no_commas"},
    ),
    "bullets": InstructionKind(
        _count(2, 6),
        ("Include exactly {count} bullet points, each on a line that begins with * or -.",
         "Put {count} bullets into it, no more and no fewer; each is a line that begins with * or -."),
        lambda a, v: measure.num_bullets(a) == v["count"],
        frozenset({"repeat_prompt"}),
    ),
    "title": InstructionKind(
        lambda rng, words, prompt: {},
        ("Give it a title in double angle brackets, like <<this>>.",
         "It needs a title, which stands between << and >>."),
        lambda a, v: any(line.partition("<<")[2].rpartition(">>")[0].strip("<> \t") for line in a.splitlines()),
    ),
    "highlights": InstructionKind(
        _count(2, 4),
        ("Highlight at least {count} passages with asterisks, like *this*.",
         "Mark {count} or more passages with markdown emphasis: *so*."),
        lambda a, v: measure.num_highlights(a) >= v["count"],
    ),
    "placeholders": InstructionKind(
        _count(2, 4),
        ("Leave at least {count} placeholders in square brackets, such as [name].",
         "Wherever a detail is to be filled in later, write a placeholder like [date]; use {count} or more."),
        lambda a, v: measure.num_placeholders(a) >= v["count"],
    ),
    "postscript": InstructionKind(
        _one("marker", ("P.S.", "P.P.S.")),
        ("Add a postscript on a line that begins with {marker}",
         "Close with a postscript; its line starts with {marker}"),
        lambda a, v: any(line.strip().lower().startswith(v["marker"].lower()) for line in a.splitlines()),
        fixed=lambda v: [v["marker"]],
    ),
    "no_commas": InstructionKind(
        lambda rng, words, prompt: {},
        ("Do without commas.", "Your text must not contain a single comma."),
        lambda a, v: measure.COMMA.search(a) is None,
        frozenset({"repeat_prompt"}),
    ),
    "uppercase": InstructionKind(
        lambda rng, words, prompt: {},
        ("Write everything in capital letters.", "Use capital letters only."),
        lambda a, v: a.isupper(),
        frozenset({"lowercase", "sections"}),
    ),
    "lowercase": InstructionKind(
        lambda rng, words, prompt: {},
        ("Write everything in small letters.", "Do not use a capital letter anywhere."),
        lambda a, v: a.islower(),
        frozenset({"capital_words", "sections"}),
    ),
    "capital_words": InstructionKind(
        _count(2, 8),
        ("Write at least {count} words entirely in capitals.", "No fewer than {count} words must be in ALL CAPITALS."),
        lambda a, v: sum(len(word) > 1 and word.isupper() for word in measure.words(a)) >= v["count"],
    ),
    "start_phrase": InstructionKind(
        _one("phrase", STARTS),
        ("Begin with exactly these words: {phrase}", "The first words of your answer must be {phrase}"),
        lambda a, v: measure.normalise(a).startswith(measure.normalise(v["phrase"])),
        _WHOLE,
        lambda v: [v["phrase"]],
    ),
    "end_phrase": InstructionKind(
        _one("phrase", ENDS),
        ("End with exactly this, and nothing after it: {phrase}", "The very last words must be {phrase}"),
        lambda a, v: a.strip().strip('"').casefold().endswith(measure.normalise(v["phrase"])),
        frozenset({"quotation", "json_object"}),
        lambda v: [v["phrase"]],
    ),
    "quotation": InstructionKind(
        lambda rng, words, prompt: {},
        ("Put your whole answer in double quotation marks.", 'Begin and end with a double quotation mark (").'),
        lambda a, v: len(text := a.strip()) > 1 and text[0] == text[-1] == '"',
        _WHOLE | {"bullets"},
    ),
    "two_responses": InstructionKind(
        lambda rng, words, prompt: {},
        ("Give two different answers, and part them with a line of six asterisks: ******",
         "Write two answers that differ. Between them stand six asterisks: ******"),
        _two_parts,
        _SHAPED | _WHOLE,
    ),
    "repeat_prompt": InstructionKind(
        lambda rng, words, prompt: {"prompt": prompt},
        ("First repeat the request above word for word, then answer it.",
         "Before you answer, write down the request above again without changing a word."),
        lambda a, v: measure.normalise(a).startswith(measure.normalise(v["prompt"])),
        _WHOLE | _SHAPED,
        lambda v: [v["prompt"]],
    ),
    "sections": InstructionKind(
        lambda rng, words, prompt: {"marker": rng.choice(("Section", "Part", "Chapter")), "count": rng.randint(2, 5)},
        ("Write {count} sections; the line before each is {marker} and its number, from {marker} 1 on.",
         "Structure it in {count} sections, headed {marker} 1 and so on, each heading on a line of its own."),
        lambda a, v: measure.section_numbers(a, v["marker"]) == list(range(1, v["count"] + 1)),
        frozenset({"json_object", "repeat_prompt"}),
        lambda v: [v["marker"]] * v["count"],
    ),
    "choice": InstructionKind(
        _one("options", CHOICES),
        ("Answer with one of these and nothing else: {options}", "Reply with exactly one of the following: {options}"),
        lambda a, v: measure.normalise(a).strip('".') in {measure.normalise(one).strip('".') for one in v["options"]},
    ),
}  # fmt: skip


def instruction_of(row: Mapping[str, Any]) -> Instruction:
    """The instruction that a row holds.

    Raises:
        UserError: its kind is none of ours.
    """
    if row["kind"] not in KINDS:
        raise UserError(f"there is no kind of instruction {row['kind']!r}; known are {', '.join(KINDS)}")
    return Instruction(row["kind"], row["values"], row["text"])


def _value_text(name: str, value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(f'"{one}"' for one in value)
    return f'"{value}"' if isinstance(value, str) and name != "marker" else str(value)


def hold_together(instructions: Sequence[Instruction]) -> bool:
    """Whether one answer can obey all of them.

    It looks at pairs of kinds, at bounds from both sides, and at texts that one asks for and another forbids.
    """
    names = [one.kind for one in instructions]
    if len({*names}) < len(names) or ("choice" in names and len(names) > 1):
        return False
    if any(other in KINDS[name].excludes for name in names for other in names if other != name):
        return False
    values = {one.kind: one.values for one in instructions}
    fixed = [text for one in instructions for text in KINDS[one.kind].fixed(one.values)]
    for what in ("words", "sentences", "letters"):
        low, high = values.get(f"min_{what}"), values.get(f"max_{what}")
        if low and high and low.get("letter") == high.get("letter") and low["count"] > high["count"]:
            return False
    avoided = values.get("avoid_words", {}).get("words", ())
    if any(occurrences(word, text) for word in avoided for text in fixed):
        return False
    letters = values.get("max_letters")
    return letters is None or "".join(fixed).lower().count(letters["letter"]) <= int(letters["count"])
