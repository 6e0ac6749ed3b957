"""Groups similar pairs into `{duplicate: the one kept}`; the kept one is always really kept."""

from collections.abc import Iterable, Sequence


class UnionFind:
    """Which of `num_items` items belong together; two items are together when a chain of unions joins them."""

    def __init__(self, num_items: int) -> None:
        self._parent = list(range(num_items))

    def find(self, item: int) -> int:
        """The representative of the item's group."""
        while self._parent[item] != item:
            self._parent[item] = self._parent[self._parent[item]]
            item = self._parent[item]
        return item

    def union(self, a: int, b: int) -> None:
        """Put the groups of `a` and `b` together; the lower representative stays."""
        a, b = sorted((self.find(a), self.find(b)))
        self._parent[b] = a


def duplicates(preferences: Sequence[tuple[float | str, ...]], pairs: Iterable[tuple[int, int]]) -> dict[int, int]:
    """For each item that is to go, the item of its group that stays: the one of highest preference.

    SemDeDup (arXiv 2303.09540) prunes an item for being like an earlier one even when that one is pruned too, so
    a reference can point nowhere. Here a whole chain of likenesses keeps one item and every reference points to it.

    Args:
        preferences: one tuple an item, compared from the left, higher is better; equal tuples keep the first item.
        pairs: positions of items that are alike.
    """
    groups = UnionFind(len(preferences))
    for a, b in pairs:
        groups.union(a, b)
    best: dict[int, int] = {}
    for item, preference in enumerate(preferences):
        root = groups.find(item)
        if root not in best or preference > preferences[best[root]]:
            best[root] = item
    kept = (best[groups.find(item)] for item in range(len(preferences)))
    return {item: keeper for item, keeper in enumerate(kept) if keeper != item}


def kept_by_likeness(
    preferences: Sequence[tuple[float | str, ...]], pairs: Iterable[tuple[int, int]]
) -> dict[int, int]:
    """For each item that is to go, the best of the kept items that it is itself like.

    Unlike `duplicates` it follows no chain. Two shots that lie in one long film are like the film and not like each
    other; if one of them is kept in the film's place, for it is larger, the other stays too.

    Args:
        preferences: as for `duplicates`.
        pairs: as for `duplicates`.
    """
    like: dict[int, set[int]] = {item: set() for item in range(len(preferences))}
    for a, b in pairs:
        if a != b:
            like[a].add(b)
            like[b].add(a)
    # sorted() is stable in reverse, too: of equals the first stays.
    rank = {item: place for place, item in enumerate(sorted(like, key=lambda item: preferences[item], reverse=True))}
    gone: dict[int, int] = {}
    for item in rank:
        keepers = [other for other in like[item] if rank[other] < rank[item] and other not in gone]
        if keepers:
            gone[item] = min(keepers, key=rank.__getitem__)
    return gone
