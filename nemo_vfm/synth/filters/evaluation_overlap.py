"""Drops rows that share words in a row with a text of an evaluation."""

from collections import Counter
from collections.abc import Mapping
from functools import cached_property

from nemo_vfm.core.log import logger
from nemo_vfm.dedup.texts.contamination import Contamination
from nemo_vfm.synth.filters.turn_texts import Turns, require_turns, turns_of
from nemo_vfm.synth.given.document_rows import HasTexts
from nemo_vfm.synth.programs.row_program import Draft


class EvaluationOverlap:
    """Drops a row with a turn that has `n` words in a row in common with a text of an evaluation (see `Contamination`).

    Evaluations are read when the first row is there, and kept: their texts, and 12 bytes for each of their words.

    Args:
        evaluations: by name, as the ledger says it: `nemo_vfm.text.documents.Documents` reads a column of files.
        n: words in a row.
        shortest: words of the shortest text of an evaluation that is looked for inside of a turn.
        turns: that are checked, each by itself.
    """

    def __init__(
        self, *, evaluations: Mapping[str, HasTexts], n: int = 13, shortest: int = 8, turns: Turns = "all"
    ) -> None:
        require_turns(turns)
        if not evaluations or not 1 <= shortest <= n:
            raise ValueError(f"evaluations must name at least one, got {sorted(evaluations)}, and shortest {shortest} "
                             f"must be from 1 to n {n}")  # fmt: skip
        self.evaluations, self.n, self.shortest, self.turns = dict(evaluations), n, shortest, turns

    def broken_rule(self, draft: Draft) -> str | None:
        """See `RowFilter`."""
        texts = turns_of(draft, self.turns)
        for name, contamination in self._contaminations.items():
            if any(contamination.find(text) for text in texts):
                return f"overlaps with {name}"
        return None

    @cached_property
    def _contaminations(self) -> dict[str, Contamination]:
        found = {}
        for name, texts in self.evaluations.items():
            skipped = Counter[str]()
            found[name] = Contamination(texts.texts(skipped), n=self.n, shortest=self.shortest)
            if skipped:
                reasons = ", ".join(f"{count:,} {reason}" for reason, count in sorted(skipped.items()))
                logger().warning("some texts of the evaluation %s are not searched for: %s", name, reasons)
        return found
