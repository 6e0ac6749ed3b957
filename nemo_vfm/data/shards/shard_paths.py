"""Opens the shards that a recipe names as one set of samples: folders, single tars, braces, lists."""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from nemo_vfm.core.errors import DataError
from nemo_vfm.core.storage.uri import Place, place
from nemo_vfm.data.shards.sample_reader import Samples
from nemo_vfm.data.shards.shard_cache import ShardCache
from nemo_vfm.data.shards.shard_files import Entry, ShardSet

MAX_NAMES = 1_000_000
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d{1,9})\.\.(\d{1,9})")


def expand_braces(text: str) -> list[str]:
    """All names, in order; the text itself where it has no braces. A range keeps the zeros that its start has.

    Raises:
        ValueError: the braces do not close, hold neither a rising range nor a list, or stand for too many names.
    """
    names, position = [""], 0
    for found in _BRACES.finditer(text):
        inside, between = found[1], text[position : found.start()]
        if span := _RANGE.fullmatch(inside):
            first, last = int(span[1]), int(span[2])
            if last < first or last - first >= MAX_NAMES:
                raise ValueError(f"{{{inside}}} is not an increasing range of at most {MAX_NAMES:,} numbers")
            parts = [str(number).zfill(len(span[1])) for number in range(first, last + 1)]
        elif "," in inside:
            parts = inside.split(",")
        else:
            raise ValueError(f"{{{inside}}} is neither a range such as {{000..127}} nor a list such as {{a,b}}")
        if len(names) * len(parts) > MAX_NAMES:
            raise ValueError(f"{text} expands to more than {MAX_NAMES:,} names")
        names = [name + between + part for name in names for part in parts]
        position = found.end()
    names = [name + text[position:] for name in names]
    if "{" in names[0] or "}" in names[0]:
        raise ValueError(f"the braces of {text} are not closed; write shard-{{000000..000127}}.tar")
    return names


def named_shards(places: Sequence[Place], cache: ShardCache | None, *, verify: bool = False) -> Samples:
    """Open what the places name; the order is theirs, and that of the shards within each."""
    wanted = folders_of(places)
    sets = [ShardSet(folder, cache, only=only, verify=verify) for folder, only in wanted.items()]
    return sets[0] if len(sets) == 1 else JoinedSamples(sets)


def folders_of(places: Sequence[Place]) -> dict[Place, frozenset[str] | None]:
    """Folder -> the tars of it that are named; None where the folder itself is."""
    found: dict[Place, set[str] | None] = {}
    for where in (place(text) for written in places for text in expand_braces(str(written))):
        if not where.name.endswith(".tar"):
            found[where] = None
        elif (names := found.setdefault(where.parent, set())) is not None:
            names.add(where.name)
    return {folder: None if names is None else frozenset(names) for folder, names in found.items()}


def _of_home(method: str) -> Any:
    """The method of the set that a sample is from, which is given the sample as that set knows it."""

    def forward(self: "JoinedSamples", entry: Entry, *arguments: Any) -> Any:
        shards, name = self._homes[entry.shard]
        return getattr(shards, method)(replace(entry, shard=name), *arguments)

    return forward


class JoinedSamples:
    """Several sets of samples as one; a sample's shard is named with its folder.

    A key that tars of others have in two sets names two samples, which are told apart by the set's number. A key of
    ours is made of the clip, so it names the same clip.


    Raises:
        DataError: a key of ours is in two of them.
    """

    def __init__(self, sets: Sequence[ShardSet]) -> None:
        self.folder = f"{sets[0].folder} and {len(sets) - 1} more"
        self._homes: dict[str, tuple[ShardSet, str]] = {}
        entries: list[Entry] = []
        first: dict[str, str] = {}  # a key's first shard
        for number, shards in enumerate(sets):
            for entry in shards.entries:
                name, key = f"{shards.folder}/{entry.shard}", entry.key
                self._homes[name] = shards, entry.shard
                other = first.setdefault(key, name)
                if other != name:
                    if shards.is_indexed or self._homes[other][0].is_indexed:
                        raise DataError(f"sample {key} is in both {other} and {name}")
                    key = f"{number}/{key}"
                entries.append(replace(entry, key=key, shard=name))
        self.entries = tuple(entries)

    #: Methods of `ShardSet`, for reading in place and for fetching by offset, too.
    read, read_all, locate, check = map(_of_home, ("read", "read_all", "locate", "check"))
    spans, read_span, checked = map(_of_home, ("spans", "read_span", "checked"))
