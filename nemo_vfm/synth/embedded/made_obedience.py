"""Makes answers that obey the verifiable instructions of a conversation, most often."""

import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import product
from typing import Any

from nemo_vfm.core.types.json_value import Json
from nemo_vfm.synth.checks.answer_measures import occurrences, words
from nemo_vfm.synth.checks.instruction_kinds import KINDS
from nemo_vfm.synth.embedded.word_draw import AnswerForm, WordDraw

_DISOBEYED = 0.1  # share of answers that obey nothing
_QUOTED = r'"[^"]*"'
_PLACES = {
    "count": r"\d+", "place": r"\d+", "words": f"{_QUOTED}(?:, {_QUOTED})*", "options": f"{_QUOTED}(?:, {_QUOTED})*",
    "word": _QUOTED, "letter": _QUOTED, "phrase": _QUOTED, "marker": r"\S+",
}  # fmt: skip
_CLAUSE_WORDS = 5
_CALM = "the sea is calm now"
_Asked = Mapping[str, Mapping[str, Any]]


def _obey(found: re.Match[str], messages: Sequence[Json], draw: WordDraw) -> str | None:
    """An answer that obeys what any turn of the user asks; None where none asks anything."""
    turns = [str(message["content"]) for message in messages if message["role"] == "user"]
    asked: dict[str, dict[str, Any]] = {}  # of each kind that a turn asks for the values
    for turn, (kind, patterns) in product(turns, _patterns().items()):
        for match in filter(None, (pattern.search(turn) for pattern in patterns)):
            values = match.groupdict() | ({"prompt": turn.split("\n")[0]} if kind == "repeat_prompt" else {})
            asked[kind] = dict(values)
            for name, text in values.items():
                if name in ("count", "place"):
                    asked[kind][name] = int(text)
                elif name in ("words", "options"):
                    asked[kind][name] = [item.strip('"') for item in re.findall(_QUOTED, text)]
                elif name not in ("marker", "prompt"):
                    asked[kind][name] = text.strip('"')
    if not asked:
        return None
    if draw.share() < _DISOBEYED:
        return f"{draw.sentence()} {draw.sentence()}"
    missing = asked.get("min_words", {"count": 0})["count"] - len(words(_answer(asked, _CLAUSE_WORDS, draw)))
    return _answer(asked, _CLAUSE_WORDS + max(0, missing), draw)


@cache
def _patterns() -> dict[str, list[re.Pattern[str]]]:
    """Each wording as a pattern with a group for each of its places."""
    found: dict[str, list[re.Pattern[str]]] = {name: [] for name in KINDS}
    for name, wording in ((name, wording) for name, kind in KINDS.items() for wording in kind.wordings):
        pattern, known = "", set[str]()
        for place, piece in enumerate(re.split(r"\{(\w+)\}", wording)):
            if place % 2 == 0:
                pattern += re.escape(piece)
            else:
                pattern += f"(?P={piece})" if piece in known else f"(?P<{piece}>{_PLACES[piece]})"
                known.add(piece)
        found[name].append(re.compile(pattern))
    return found


def _answer(asked: _Asked, fill: int, draw: WordDraw) -> str:
    if "choice" in asked:
        return str(asked["choice"]["options"][0])
    # All that is asked of words in the first sentence, with at least `fill` further words; then more sentences.
    used = [*asked.get("include_words", {}).get("words", [])]
    used += [asked["word_frequency"]["word"]] * asked["word_frequency"]["count"] if "word_frequency" in asked else []
    used += ["DIM"] * asked.get("capital_words", {}).get("count", 0)
    used += ["[date]"] * asked.get("placeholders", {}).get("count", 0)
    used += ["*dim*"] * asked.get("highlights", {}).get("count", 0)
    used += [asked["min_letters"]["letter"] * asked["min_letters"]["count"]] if "min_letters" in asked else []
    while fill > 0:
        used.append(_clause(asked, draw))
        fill -= len(words(used[-1]))
    begin = asked.get("start_phrase", {}).get("phrase") or asked.get("repeat_prompt", {}).get("prompt", "")
    more = asked.get("min_sentences", {}).get("count", 1) - 1
    sentences = [" ".join([begin, *used]).strip(), *(_clause(asked, draw) for _ in range(more))]
    text = _in_case(". ".join(sentences) + ".", asked)
    if "json_object" in asked:
        return json.dumps({_in_case("a", asked): text})
    sections = [f"{asked['sections']['marker']} {i + 1}" for i in range(asked.get("sections", {}).get("count", 0))]
    bullets = [f"- {_clause(asked, draw)}" for _ in range(asked.get("bullets", {}).get("count", 0))]
    title = [f"<<{_clause(asked, draw)}>>"] if "title" in asked else []
    counts = [asked[name]["count"] for name in ("paragraphs", "paragraph_start", "divided_parts") if name in asked]
    num_blocks = int(counts[0]) if counts else 2 if "two_responses" in asked else 1
    blocks = ["\n".join([text, *title, *sections, *bullets]), *(_clause(asked, draw) for _ in range(num_blocks - 1))]
    if "paragraph_start" in asked:
        place = asked["paragraph_start"]["place"] - 1
        blocks[place] = f"{asked['paragraph_start']['word']} {blocks[place]}"
    quote = '"' if "quotation" in asked else ""
    lines = [f"{asked['postscript']['marker']} {_clause(asked, draw)}"] if "postscript" in asked else []
    lines += [asked["end_phrase"]["phrase"]] if "end_phrase" in asked else []
    between = "\n***\n" if "divided_parts" in asked else "\n******\n" if "two_responses" in asked else "\n\n"
    return _in_case("\n".join([f"{quote}{between.join(blocks)}", *lines]) + quote, asked)


def _clause(asked: _Asked, draw: WordDraw) -> str:
    """Words about nothing, with none of those to avoid, and not the letter that must be rare."""
    avoided = asked.get("avoid_words", {}).get("words", ())
    rare = asked.get("max_letters", {}).get("letter")
    for _ in range(10):
        text = f"{draw.thing()} {draw.deed()} {draw.thing()}"
        if not any(occurrences(word, text) for word in avoided) and not (rare and rare in text):
            return text
    return _CALM


def _in_case(text: str, asked: _Asked) -> str:
    return text.upper() if "uppercase" in asked else text.lower() if "lowercase" in asked else text


#: Any question may stand in a conversation with instructions, so the second form comes last of all.
FORMS = (
    AnswerForm(re.compile(r"take back what you asked"), lambda found, messages, draw: draw.question()),
    AnswerForm(re.compile(r"\A"), _obey),
)
