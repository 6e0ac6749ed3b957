"""Makes instructions about given documents, and answers whose quotations stand in them (2406.11704, 3.2)."""

import random
from collections.abc import Iterable, Iterator, Mapping

from nemo_vfm.core.network.permission import SentText
from nemo_vfm.synth.checks.citations import missing_quotations, quotations
from nemo_vfm.synth.given.row_source import GivenRow, RowSource, licence_of
from nemo_vfm.synth.programs.list_questions import LIST_PROMPTS, lists_of
from nemo_vfm.synth.programs.prompt_template import Prompt
from nemo_vfm.synth.programs.row_program import (
    Ask,
    Draft,
    DroppedRow,
    Pipeline,
    Program,
    RowFailed,
    RowProgram,
    ended_row,
    say,
    texts_of,
)

_PLACES = frozenset({"document", "instruction"})


class ClosedQa(Pipeline):
    """Instructions and answers about documents.

    Args:
        documents: where they are.
        kinds: of instructions, by name: what they ask for, as the prompt `instructions` says it.
        templates: by name: they join document and instruction to what the user says; one is drawn for each row.
        column: that holds a document's text.
        licence: column with a document's licence; None takes the column `licence` where there is one.
        instructions: of each kind and document.
        max_words: documents of more words are left out, as a model's context is limited.
        min_quotations: that an answer must have; all that it has must stand in the document.
        min_words: shorter quotations are not looked at: a word is often only mentioned.
        seed: of the draw of templates.
    """

    def __init__(
        self, *, documents: RowSource, kinds: Mapping[str, SentText], templates: Mapping[str, Prompt],
        column: str = "text", licence: str | None = None, instructions: int = 1, max_words: int = 2000,
        min_quotations: int = 1, min_words: int = 3, seed: int = 0,
    ) -> None:  # fmt: skip
        if not kinds or not templates or min(instructions, max_words, min_words) < 1 or min_quotations < 0:
            raise ValueError(f"kinds ({len(kinds)}) and templates ({len(templates)}) must not be empty, instructions "
                             f"{instructions}, max_words {max_words} and min_words {min_words} at least 1, "
                             f"min_quotations {min_quotations} at least 0")  # fmt: skip
        for name, template in templates.items():
            if template.names() != _PLACES:
                raise ValueError(f"the template {name} must have the places {{document}} and {{instruction}}, and has "
                                 f"{', '.join(sorted(template.names())) or 'none'}")  # fmt: skip
        self.documents, self.kinds, self.templates, self.column = documents, dict(kinds), dict(templates), column
        self.licence, self.instructions, self.max_words = licence, instructions, max_words
        self.min_quotations, self.min_words, self.seed = min_quotations, min_words, seed

    def prompts(self) -> Mapping[str, frozenset[str]]:
        return {**LIST_PROMPTS, "instructions": frozenset({"count", "kind", "document"})}

    def candidates(self) -> Program[Iterable[RowProgram]]:
        """All kinds of instructions for one document, then those for the next."""
        yield from ()
        return self._each()

    def _each(self) -> Iterator[RowProgram]:
        for given in self.documents.given_rows():
            words = 0 if given.fault else len(given.text(self.column).split())
            if given.fault or not words:
                yield ended_row(given.fault or "the document is empty")
            elif words > self.max_words:
                yield ended_row(DroppedRow(f"the document has more than {self.max_words:,} words"))
            else:
                yield from (self.row(given, kind, place) for kind in self.kinds for place in range(self.instructions))

    def row(self, given: GivenRow, kind: str, place: int) -> RowProgram:
        """The instruction of a kind with its document, and an answer.

        Args:
            place: of the instruction among those of the kind, which are one answer that is asked for once.
        """
        document = given.text(self.column).strip()
        count = self.instructions
        values = {"count": str(count), "kind": self.kinds[kind], "document": document}
        (items,) = yield from lists_of([Ask("instructions", values)], count)
        if place >= len(items):
            raise RowFailed("the model wrote fewer instructions than it was asked for")
        instruction = items[place]
        name = random.Random(f"{self.seed} {instruction}").choice(sorted(self.templates))
        template = self.templates[name]
        user = say("user", template.fill({"document": document, "instruction": instruction}))
        (answer,) = texts_of((yield [Ask(None, before=(user,))]))
        quoted = quotations(answer, self.min_words)
        if len(quoted) < self.min_quotations:
            return DroppedRow("the answer quotes too little")
        if missing_quotations(answer, document, self.min_words):
            return DroppedRow("a quotation is not in the document")
        parents = {"document": given.where, "kind": kind, "instruction": instruction}
        return Draft(
            [user, say("assistant", answer)], {**parents, "template": f"{name}/{template.version}"},
            verifier=f"quotations/1: {len(quoted)} of {len(quoted)} are in the document",
            licence=licence_of(given, self.licence),
        )  # fmt: skip
