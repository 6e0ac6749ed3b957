"""Balances the clips that rules keep towards a wanted mixture: some are dropped, others count more than once.

Which clips are dropped follows from their ids and the seed alone. Neither the order of files nor the number of
workers matters, and a lower cap keeps a subset of what a higher one keeps.
"""

import hashlib
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches

from nemo_vfm.core.types.component import PartRefused
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.curate.decide.rule import Known
from nemo_vfm.curate.decide.score_table import Table, table_of
from nemo_vfm.curate.record.ledger import ClipRecord
from nemo_vfm.data.batching.bucket import Buckets

RULE = "balance"  #: what ledgers and tables call it
BUCKET, SOURCE = "bucket", "source"
REST = "*"


@dataclass(frozen=True, slots=True)
class BalanceResult:
    """The result of a balance."""

    #: clip id -> how often it counts, for every clip that rules keep; 0 if it is dropped
    weights: Mapping[str, int] = field(default_factory=dict)
    #: of each group its number of clips, of those kept, and of repeats; for balance.json
    plan: Json = field(default_factory=dict)


class Balance:
    """Thins out large groups of clips, and lets clips of small groups count more than once.

    Applied after all rules, to the clips that they keep; what it drops is recorded under the rule `balance`. Give caps,
    shares or both; caps come first. Shares take the largest number of clips with which every group has its share, so a
    share that is far above what there is costs many clips of the others: balance.json names the group that holds all
    back.

    Args:
        by: what makes a group: a column of labels, of a stage such as `camera` or of a table of videos, `bucket` (needs
            buckets), or `source`, the file.
        shares: group -> its part of all clips, 0 to 1. What they leave of 1 goes to all other groups together.
        caps: group -> the most clips that it may have; `*` stands for each other group.
        repeat: a clip may count up to this many times where its group is too small for its share; a weight in the index
            of shards, never a copy.
        buckets: the shapes of `by: bucket`.
        seed: another seed keeps other clips.
    """

    def __init__(
        self,
        *,
        by: str,
        shares: Mapping[str, float] | None = None,
        caps: Mapping[str, int] | None = None,
        repeat: int = 1,
        buckets: Buckets | None = None,
        seed: int = 0,
    ) -> None:
        self.by, self.shares, self.caps = by, dict(shares or {}), dict(caps or {})
        self.repeat, self.buckets, self.seed = repeat, buckets, seed
        if not self.shares and not self.caps:
            raise ValueError("balance needs shares or caps, got neither")
        if any(not 0 <= share <= 1 for share in self.shares.values()) or sum(self.shares.values()) > 1 + 1e-9:
            raise ValueError(
                f"shares must add up to at most 1, got {self.shares} with the sum {sum(self.shares.values()):g}"
            )
        if REST in self.shares:
            raise ValueError("whatever shares leave of 1 goes to all other groups, so remove *")
        if any(cap < 0 for cap in self.caps.values()) or repeat < 1:
            raise ValueError(f"caps must be at least 0 and repeat at least 1, got {self.caps} and {repeat}")
        if (by == BUCKET) != (buckets is not None):
            raise ValueError(f"buckets are needed for by: bucket and for nothing else; by is {by!r}")

    def check(self, columns: Known, *, is_all: bool = True) -> None:
        """Refuse groups that no stage or source gives.

        Args:
            columns: of stages and source: column -> the words that may stand in it, none where nobody knows them yet;
                None where it holds numbers.

        Raises:
            PartRefused: such a group, or a column that holds no words.
        """
        known: Collection[str] | None = ()
        if self.buckets is not None:
            known = list(self.buckets.buckets)
        elif self.by != SOURCE and self.by in columns:
            known = columns[self.by]
        elif self.by != SOURCE and is_all:
            there = [BUCKET, SOURCE, *sorted(name for name, words in columns.items() if words is not None)]
            near = get_close_matches(self.by, there, n=1, cutoff=0.6)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(there)}"
            raise PartRefused(f"a balance by {self.by!r}: nothing gives such labels; {hint}", "balance", "by")
        if known is None:
            text = f"a balance by {self.by!r} groups clips by words, but that column holds numbers"
            raise PartRefused(text, "balance", "by")
        if odd := sorted({*self.shares, *self.caps} - {REST, *known} if known else ()):
            text = f"a balance by {self.by!r} names {', '.join(odd)}; there are {', '.join(known)}"
            raise PartRefused(text, "balance")

    def apply(self, records: Sequence[ClipRecord]) -> BalanceResult:
        """Drop the excess among records that the rules keep, under the rule `balance`; repeating it changes nothing."""
        whole = [record for record in records if record.decision == "kept" or record.rule == RULE]
        found = self.weigh(self.groups(table_of(whole), [r.source for r in whole]), [r.clip.id for r in whole])
        for record in whole:
            record.rule = None if found.weights[record.clip.id] else RULE
        return found

    def groups(self, table: Table, sources: Sequence[str]) -> list[str]:
        """The group of every clip of a table; `none` where it has no label or fits no bucket."""
        if self.by == SOURCE:
            return list(sources)
        if self.buckets is not None:
            facts = [table.numbers(name).tolist() for name in ("width", "height", "num_frames", "fps")]
            shapes = []
            for is_image, width, height, num_frames, fps in zip(table.images.tolist(), *facts, strict=True):
                w, h = int(width), int(height)
                # 4:2:0 has no odd sizes: what is encoded has one more column or row.
                shapes.append((w, h, 1, 1.0) if is_image else (w + w % 2, h + h % 2, int(num_frames), fps))
            return [self.buckets.assign(*shape).bucket or "none" for shape in shapes]
        labels = table.labels(self.by)
        words = [*labels.words, "none"]  # the last entry is for -1
        return [words[code] for code in labels.codes.tolist()]

    def weigh(self, groups: Sequence[str], ids: Sequence[str]) -> BalanceResult:
        """How often each clip counts."""
        members: dict[str, list[str]] = {}
        for clip, group in sorted(zip(ids, groups, strict=True), key=lambda item: self._lot(item[0])):
            members.setdefault(group, []).append(clip)
        capped = {
            group: clips[: self.caps.get(group, self.caps.get(REST, len(clips)))] for group, clips in members.items()
        }
        wanted, held_by = self._choose(capped)
        weights = dict.fromkeys(ids, 0)
        for clips, number in wanted:
            for place, clip in enumerate(clips[:number]):
                weights[clip] = number // len(clips) + (place < number % len(clips)) if number > len(clips) else 1
        counted = sum(weights.values())
        of_groups = {}
        for group, clips in sorted(members.items()):
            times = sum(weights[clip] for clip in clips)
            of_groups[group] = {
                "clips": len(clips), "kept": sum(weights[clip] > 0 for clip in clips), "counted": times,
                "share": times / counted if counted else 0.0, "wanted_share": self.shares.get(group),
            }  # fmt: skip
        return BalanceResult(weights, {"by": self.by, "held_back_by": held_by, "groups": of_groups})

    def _lot(self, clip: str) -> str:
        return hashlib.sha256(f"{self.seed}:{clip}".encode()).hexdigest()

    def _choose(self, members: Mapping[str, Sequence[str]]) -> tuple[list[tuple[Sequence[str], int]], str | None]:
        """Clips in the order in which they are taken, how many of them, and the group that holds the others back."""
        if not self.shares:
            return [(clips, len(clips)) for clips in members.values()], None
        named = {group: members[group] for group in self.shares if members.get(group)}
        others = [clip for group, clips in members.items() if group not in self.shares for clip in clips]
        others.sort(key=self._lot)
        share = {group: self.shares[group] for group in named}
        if others:
            named[REST], share[REST] = others, max(0.0, 1 - math.fsum(self.shares.values()))
        whole = math.fsum(share.values())
        most = {group: len(named[group]) * whole / part for group, part in share.items() if part > 1e-9}
        if not most:
            return [], None
        held_by = min(most, key=lambda group: (most[group], group))
        # Repeats fill up to where the largest group counts once, never beyond: else all would be repeated.
        total = min(most[held_by] * self.repeat, max(most.values()))
        return [(named[group], int(total * part / whole + 1e-6)) for group, part in share.items()], held_by
