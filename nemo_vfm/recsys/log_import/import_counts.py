"""Counts what became of the rows of a log, and lists the first bad ones."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from nemo_vfm.core.types.json_value import Json
from nemo_vfm.recsys.sources.log_reading import BadRow

#: Bad rows that are listed; all are counted.
MOST_LISTED = 1000


@dataclass(slots=True)
class ImportCounts:
    """Rows that came in, and what became of those that are not in the table.

    Args:
        total: rows read, bad ones included.
        dropped: by rule.
        failed: bad rows, by reason.
        listed: the first of them.
    """

    total: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    listed: list[BadRow] = field(default_factory=list)

    @property
    def kept(self) -> int:
        """Rows that are neither dropped nor bad."""
        return self.total - self.dropped.total() - self.failed.total()

    def fail(self, rows: Iterable[BadRow]) -> None:
        """Count bad rows."""
        for row in rows:
            self.failed[row.reason] += 1
            if len(self.listed) < MOST_LISTED:
                self.listed.append(row)

    def column(self) -> dict[str, Json]:
        """As ledger.json has it: in = kept + dropped + failed."""
        return {
            "in": self.total, "kept": self.kept, "dropped": dict(sorted(self.dropped.items())),
            "failed": dict(sorted(self.failed.items())),
        }  # fmt: skip

    def json(self) -> dict[str, Json]:
        """All of it, for `counts_of`."""
        listed: list[Json] = [asdict(row) for row in self.listed]
        return {"total": self.total, "dropped": dict(self.dropped), "failed": dict(self.failed), "listed": listed}


def counts_of(content: Any) -> ImportCounts:
    """The counts that `ImportCounts.json` gave, or a copy of them."""
    listed = [BadRow(**row) for row in content["listed"]]
    return ImportCounts(content["total"], Counter(content["dropped"]), Counter(content["failed"]), listed)
