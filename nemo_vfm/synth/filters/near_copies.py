"""Drops rows whose text is nearly that of an earlier row."""

from collections.abc import Callable

from nemo_vfm.core.bounds import require_between
from nemo_vfm.core.errors import UserError
from nemo_vfm.dedup.texts.minhash import bands_for
from nemo_vfm.dedup.texts.near_texts import NUM_HASHES, NearTextIndex
from nemo_vfm.dedup.texts.shingles import Shingles
from nemo_vfm.synth.filters.turn_texts import Turns, join_turns, require_turns
from nemo_vfm.synth.programs.row_program import Draft


class NearCopies:
    """Keeps the first of rows whose shingles have at least this Jaccard similarity; MinHash only proposes.

    It takes about 2 ms a row. A row that passes is kept: its text and 0.5 to 1.1 kB.

    Args:
        threshold: least Jaccard similarity of a copy, above 0, at most 1.
        turns: whose text is compared.
        shingles: what is compared: 5 characters suit short texts; for long ones take `{unit: words, size: 3}`.
        num_hashes: numbers of a signature.
        max_gb: memory for all that is kept, in GB (10^9 bytes); where it does not do, the run ends and says so.
    """

    def __init__(
        self, *, threshold: float = 0.8, turns: Turns = "user", shingles: Shingles = Shingles(),
        num_hashes: int = NUM_HASHES, max_gb: float = 4.0,
    ) -> None:  # fmt: skip
        require_turns(turns)
        require_between(0.001, 10_000, max_gb=max_gb)
        bands_for(threshold, num_hashes)
        self.threshold, self.turns, self.shingles = threshold, turns, shingles
        self.num_hashes, self.max_gb = num_hashes, max_gb

    def make_rule(self) -> Callable[[Draft], str | None]:
        """See `OrderedFilter`.

        Its rule raises:
            UserError: the rows that passed take more than `max_gb`.
        """
        index = NearTextIndex(threshold=self.threshold, shingles=self.shingles, num_hashes=self.num_hashes)

        def rule(draft: Draft) -> str | None:
            text = join_turns(draft, self.turns)
            if next(index.matches(text), None) is not None:
                return "near copy"
            index.enter(text)
            if index.size() > self.max_gb * 1e9:
                raise UserError(
                    f"the texts of {len(index):,} rows that NearCopies compares with need more than its max_gb "
                    f"{self.max_gb:g}; raise it, or make fewer rows in a run. Answers are kept, and no question is "
                    "asked again"
                )
            return None

        return rule
