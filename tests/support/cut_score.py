"""Scores found cuts against known events as TRECVID does: each cut counts once."""

from collections import Counter
from collections.abc import Iterable, Sequence

from tests.support.shot_films import Event


def match(cuts: Iterable[int], events: Sequence[Event], tolerance: int) -> list[Event | None]:
    """Of each cut the event it found, nearest pairs first; an event is found once."""
    cuts = list(cuts)
    pairs = sorted(
        (_distance(cut, event), place, number)
        for place, cut in enumerate(cuts)
        for number, event in enumerate(events)
        if _distance(cut, event) <= tolerance
    )
    found: dict[int, int] = {}
    for _, place, number in pairs:
        if place not in found and number not in found.values():
            found[place] = number
    return [events[found[place]] if place in found else None for place in range(len(cuts))]


def _distance(cut: int, event: Event) -> int:
    return max(event.start - cut, cut - event.stop, 0)


class CutScore:
    """Adds up films, whose cuts may lie `tolerance` frames beside an event."""

    def __init__(self, tolerance: int = 2) -> None:
        self._tolerance, self._there, self._hit, self._stray = tolerance, Counter(), Counter(), 0

    def add(self, cuts: Iterable[int], events: Sequence[Event]) -> None:
        real = [event for event in events if event.kind not in ("flash", "whip")]
        false = [event for event in events if event not in real]
        cuts = list(cuts)
        matched = match(cuts, real, self._tolerance)
        stray = [cut for cut, event in zip(cuts, matched, strict=True) if event is None]
        self._there.update(event.kind for event in events)
        self._hit.update(event.kind for event in matched if event is not None)
        self._hit.update(
            event.kind for event in false if any(_distance(cut, event) <= self._tolerance for cut in stray)
        )
        self._stray += len(stray)

    def share(self, *kinds: str) -> float:
        """Of all events of these kinds, how many were cut at."""
        return sum(self._hit[kind] for kind in kinds) / max(1, sum(self._there[kind] for kind in kinds))

    def figures(self) -> dict[str, float]:
        hits, missed = self._hit["cut"], self._there["cut"] - self._hit["cut"]
        return {
            "hard_f1": 2 * hits / (2 * hits + missed + self._stray),
            "hard_recall": self.share("cut"),
            "fade_recall": self.share("black", "dissolve"),
            "black_recall": self.share("black"),
            "dissolve_recall": self.share("dissolve"),
            "wipe_recall": self.share("wipe"),
            "hole_recall": self.share("hole"),
            "resize_recall": self.share("resize"),
            "flash_false_positives": self.share("flash", "whip"),
            "stray_cuts": float(self._stray),
        }
