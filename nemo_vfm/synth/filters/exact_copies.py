"""Drops rows whose text equals that of an earlier row."""

from collections.abc import Callable

from nemo_vfm.dedup.texts.normalize_text import text_digest
from nemo_vfm.synth.filters.turn_texts import Turns, join_turns, require_turns
from nemo_vfm.synth.programs.row_program import Draft


class ExactCopies:
    """Keeps the first of rows that are equal but for case, white space and invisible characters.

    About 100 bytes of each row that passes are kept.

    Args:
        turns: whose text is compared: two answers to one task are copies by `user`, and none by `all`.
    """

    def __init__(self, *, turns: Turns = "user") -> None:
        require_turns(turns)
        self.turns = turns

    def make_rule(self) -> Callable[[Draft], str | None]:
        """See `OrderedFilter`."""
        known = set[bytes]()

        def rule(draft: Draft) -> str | None:
            digest = text_digest(join_turns(draft, self.turns))
            if digest in known:
                return "exact copy"
            known.add(digest)
            return None

        return rule
