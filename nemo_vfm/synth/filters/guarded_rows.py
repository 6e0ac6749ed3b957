"""Drops rows that a guard model calls unsafe, by category."""

import re
from collections.abc import Mapping, Sequence

from nemo_vfm.synth.checks.answer_measures import normalise
from nemo_vfm.synth.filters.turn_texts import answer_of
from nemo_vfm.synth.programs.judgement import transcript
from nemo_vfm.synth.programs.row_program import Ask, Draft, Program, RowFailed, texts_of

_VERDICT = re.compile(r"[\W_]*(safe|unsafe)[\W_]*(.*)", re.IGNORECASE | re.DOTALL)
_CODES = re.compile(r"\s*[A-Z]\d{1,2}(?:\s*,\s*[A-Z]\d{1,2})*[\s.*`]*")
# A code, or the name of a category in a few words.
_NAME = re.compile(r"[\s*`-]*([A-Z]\d{1,2}(?=[.\s*`]*$)|[^\W_][^.!?]{1,39}?(?=[\s*`]*$))[.\s*`]*")
_MAX_WORDS = 5
_NO_VERDICT = "the guard said neither safe nor unsafe with categories"


class GuardedRows:
    """Asks a guard model about each conversation: `safe`, or `unsafe` and then categories, as Llama Guard and Aegis do.

    An answer in any other form is no verdict: the row fails.

    Args:
        drop: categories that drop a row, as the guard writes them; None drops whatever is unsafe. What is unsafe
            without a category is dropped in any case.
        prompt: by which a model is asked, with the place {transcript}; None sends the conversation as it is, for a
            guard whose own chat template asks.
        role: of the guard in `models`.
    """

    def __init__(self, *, drop: Sequence[str] | None = None, prompt: str | None = "guard", role: str = "guard") -> None:
        if drop is not None and (not drop or not all(one.strip() for one in drop)):
            raise ValueError(f"drop must name at least one category, or be null for all of them, got {list(drop)}")
        self.drop, self.prompt, self.role = drop, prompt, role
        self._dropped = None if drop is None else {normalise(one) for one in drop}

    def prompts(self) -> Mapping[str, frozenset[str]]:
        """See `AskingFilter`."""
        return {} if self.prompt is None else {self.prompt: frozenset({"transcript"})}

    def roles(self) -> Sequence[str]:
        return [self.role]

    def rule_program(self, draft: Draft) -> Program[str | None]:
        """See `AskingFilter`; of a row of preferences, the chosen answer is looked at."""
        messages = [*draft.messages, *answer_of(draft, "chosen")]
        values = {} if self.prompt is None else {"transcript": transcript(messages)}
        before = tuple(map(dict, messages)) if self.prompt is None else ()
        (answer,) = texts_of((yield [Ask(self.prompt, values, before, model=self.role)]))
        categories = unsafe_categories(answer)
        if categories is None:
            return None
        for category in categories:
            if self._dropped is None or normalise(category) in self._dropped:
                return f"unsafe: {category}"
        return None if categories else "unsafe, without a category"


def unsafe_categories(answer: str) -> list[str] | None:
    """Categories of what a guard calls unsafe; None where it calls it safe."""
    first, _, rest = answer.strip().partition("\n")
    found = _VERDICT.fullmatch(first)
    if found is None or (found[2] and not (found[1].lower() == "unsafe" and _CODES.fullmatch(found[2]))):
        raise RowFailed(_NO_VERDICT)
    items = [item for item in re.split(r"[,\n]", f"{found[2]}\n{rest}") if item.strip()]
    if found[1].lower() == "safe" and not items:
        return None
    names = [_NAME.fullmatch(item) for item in items if len(item.split()) <= _MAX_WORDS]
    if found[1].lower() == "safe" or len(names) < len(items) or not all(names):
        raise RowFailed(_NO_VERDICT)
    return [name[1] for name in names if name]
