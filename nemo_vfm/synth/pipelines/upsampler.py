"""Makes short prompts for long captions, to train a model that turns a user's few words into a caption."""

import re
from collections.abc import Iterable, Mapping

from nemo_vfm.core.network.permission import SentText
from nemo_vfm.synth.given.row_source import GivenRow, RowSource, licence_of
from nemo_vfm.synth.programs.row_program import (
    Ask,
    Draft,
    DroppedRow,
    Pipeline,
    Program,
    RowFailed,
    RowProgram,
    say,
    texts_of,
)

_LABEL = re.compile(r"^\W*(?:short |user )?(?:prompt|request|input)\W*:\s*", re.IGNORECASE)
_QUOTES = "\"'\u201c\u201d\u2018\u2019`*"
#: Words that a request may have although no caption does: of grammar, and of asking for a picture.
_GRAMMAR = """a an the this that these those some any each of in on at to from by for with without over under into onto
through and or but while as when where who which it its his her their there he she they is are was were be being been
has have do does not no very i me my we us you your please can could would want like"""
_REQUEST = "make create generate show give draw render video clip movie film footage scene shot picture image photo one"
_FREE = frozenset(f"{_GRAMMAR} {_REQUEST}".split())
_ENDINGS = ("ing", "ed", "es", "s", "ly", "e")


class Upsampler(Pipeline):
    """Pairs of a prompt that a user might have typed, and the caption that it stands for.

    Args:
        rows: with captions: shards of clips, or a file.
        column: that holds a caption.
        licence: column with a caption's licence; None takes the column `licence` where there is one.
        min_caption_words: shorter captions leave nothing to add.
        max_caption_words: longer captions are left out, as a model's context is limited.
        prompt_words: least and most words of the prompt.
        max_share: of the caption's words that the prompt may have.
        max_new_words: words of the prompt that the caption lacks, beside those that any request may have; numbers and
            names are never new. Languages without spaces between words cannot be judged so.
        system: the system prompt of the model; empty leaves the turn out.
    """

    def __init__(
        self, *, rows: RowSource, column: str = "caption", licence: str | None = None,
        min_caption_words: int = 20, max_caption_words: int = 400, prompt_words: tuple[int, int] = (2, 12),
        max_share: float = 0.5, max_new_words: int = 0, system: SentText = "",
    ) -> None:  # fmt: skip
        least, most = prompt_words
        if not 1 <= least <= most or not 1 <= min_caption_words <= max_caption_words:
            raise ValueError(f"prompt_words {list(prompt_words)}, and min_caption_words {min_caption_words} and "
                             f"max_caption_words {max_caption_words}, must increase from at least 1")  # fmt: skip
        if not 0 < max_share <= 1 or max_new_words < 0:
            raise ValueError(f"max_share {max_share:g} must be above 0 and at most 1, max_new_words "
                             f"{max_new_words} at least 0")  # fmt: skip
        self.rows, self.column, self.licence = rows, column, licence
        self.min_caption_words, self.max_caption_words = min_caption_words, max_caption_words
        self.prompt_words, self.max_share, self.max_new_words = (least, most), max_share, max_new_words
        self.system = system

    def prompts(self) -> Mapping[str, frozenset[str]]:
        return {"short_prompt": frozenset({"caption", "least", "most"})}

    def candidates(self) -> Program[Iterable[RowProgram]]:
        """Each caption, in order."""
        yield from ()
        return map(self.row, self.rows.given_rows())

    def row(self, given: GivenRow) -> RowProgram:
        """A caption with a short prompt for it."""
        if given.fault:
            raise RowFailed(given.fault)
        caption = given.text(self.column).strip()
        words = len(caption.split())
        if words < self.min_caption_words:
            return DroppedRow(f"a caption of fewer than {self.min_caption_words} words")
        if words > self.max_caption_words:
            return DroppedRow(f"a caption of more than {self.max_caption_words} words")
        least, most = self.prompt_words
        values = {"caption": caption, "least": str(least), "most": str(most)}
        prompt = as_typed(*texts_of((yield [Ask("short_prompt", values)])))
        if not least <= len(prompt.split()) <= most:
            return DroppedRow(f"a prompt of fewer than {least} or more than {most} words")
        if len(prompt.split()) > self.max_share * words:
            return DroppedRow("a prompt that is hardly shorter than its caption")
        new = new_words(prompt, caption)
        if len(new) > self.max_new_words or any(_is_fact(word, prompt) for word in new):
            return DroppedRow("a prompt that names something not in its caption")
        system = [say("system", self.system)] if self.system else []
        return Draft(
            [*system, say("user", prompt), say("assistant", caption)], {"given": given.where},
            verifier="words/1: the prompt names nothing that is not in the "
                     "caption" if not self.max_new_words else "",
            licence=licence_of(given, self.licence),
        )  # fmt: skip


def as_typed(answer: str) -> str:
    """The prompt in an answer: one line, without a label and quotation marks around it."""
    lines = [line for line in answer.strip().splitlines() if line.strip()]
    if len(lines) == 2 and lines[0].rstrip().endswith(":"):
        lines = lines[1:]
    return _LABEL.sub("", " ".join(" ".join(lines).split())).strip(_QUOTES).strip()


def new_words(prompt: str, caption: str) -> list[str]:
    """Words of a prompt that a caption lacks in any form, but those that every request may have."""
    known = {_stem(word) for word in _words(caption)}
    return [word for word in _words(prompt) if word not in _FREE and _stem(word) not in known]


def _words(text: str) -> list[str]:
    return re.findall(r"[^\W_]+", re.sub(r"['\u2019]s\b", "", text.casefold()))


def _stem(word: str) -> str:
    """Without an ending of English grammar, as in running, runs."""
    if word.endswith(("ies", "ied")) and len(word) > 4:
        return f"{word[:-3]}y"
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            word = word.removesuffix(ending)
            break
    return word[:-1] if len(word) > 3 and word[-1] == word[-2] else word


def _is_fact(word: str, prompt: str) -> bool:
    """Whether a word is a number, or written with a capital inside the prompt."""
    inside = re.search(rf"(?<=\S)\s+{re.escape(word)}(?!\w)", prompt, re.IGNORECASE)
    return any(letter.isdigit() for letter in word) or (inside is not None and inside[0].strip()[0].isupper())
