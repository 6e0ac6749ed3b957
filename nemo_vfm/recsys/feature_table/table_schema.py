"""Declares which columns a feature table has, and which features it stores once a run of equal rows."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_ -]{0,99}")


@dataclass(frozen=True, slots=True)
class TableSchema:
    """Names of the columns of a feature table.

    Raises:
        ValueError: a name is not of letters, digits, "_", "-" and spaces, or occurs twice; a group is empty, or names
            what is no feature, or a feature of another group; a window is in no group.
    """

    dense: Sequence[str] = ()  #: numbers, one a sample
    labels: Sequence[str] = ()  #: labels, one a sample
    features: Sequence[str] = ()  #: lists of ids, one a sample
    #: by name, features that change together. Consecutive samples that agree in all of them share one row.
    groups: Mapping[str, Sequence[str]] = field(default_factory=dict)
    #: features of groups whose rows shift: each begins with the end of the one before. Only what is new is stored.
    windows: Sequence[str] = ()
    #: features that are made of other features' ids, such as a history of items, and these
    ids_of: Mapping[str, str] = field(default_factory=dict)
    weight: bool = False  #: whether each sample has one, that its loss counts

    def __post_init__(self) -> None:
        for kind in ("dense", "labels", "features", "windows"):
            object.__setattr__(self, kind, tuple(getattr(self, kind)))
            _require_names(kind, getattr(self, kind))
        object.__setattr__(self, "groups", {name: tuple(names) for name, names in self.groups.items()})
        _require_names("groups", tuple(self.groups))
        for group, names in self.groups.items():
            if not names:
                raise ValueError(f"group {group} has no features; name some or leave it out")
        if unknown := [name for name in self.grouped_features if name not in self.features]:
            raise ValueError(f"a group names {unknown[0]}, which is not among the features {', '.join(self.features)}")
        if lone := [name for name in self.windows if name not in self.grouped_features]:
            raise ValueError(f"the window {lone[0]} is in no group; put it into one, alone if necessary")
        _require_names("features of groups", self.grouped_features)

    @property
    def grouped_features(self) -> tuple[str, ...]:
        """The features of all groups."""
        return tuple(name for names in self.groups.values() for name in names)

    @property
    def ungrouped_features(self) -> tuple[str, ...]:
        """The features of no group, which have a row a sample."""
        grouped = set(self.grouped_features)
        return tuple(name for name in self.features if name not in grouped)


def _require_names(kind: str, names: Sequence[str]) -> None:
    if wrong := [name for name in names if not _NAME.fullmatch(name)]:
        raise ValueError(f"{kind}: {wrong[0]!r} is not a name of up to 100 letters, digits, '_', '-' and spaces")
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise ValueError(f"{kind}: {twice[0]} occurs twice")
