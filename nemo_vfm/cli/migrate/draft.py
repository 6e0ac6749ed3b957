"""Collects what a migrated recipe will hold, by address, and what became of every fact of the foreign file.

A *fact* is the meaning of a key, whatever its name: `lr`, `max_steps`. Formats say which key holds which fact. What
becomes of a fact is decided once for all formats, in `training.py` and `diffusion.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from nemo_vfm.cli.migrate.foreign_yaml import Value

Kind = Literal["diffusion", "language", "lightning"]
Verdict = Literal["carried", "changed", "left"]


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of a fact or a key.

    Args:
        verdict: carried over as it was; carried over as something else; or left behind.
        where: the address in the recipe; empty where it was left.
        why: what changed, or why it was left; empty where it was carried.
    """

    verdict: Verdict
    where: str = ""
    why: str = ""


@dataclass(slots=True)
class Draft:
    """A recipe in the making.

    Args:
        facts: what the file said.
        kind: what is trained.
    """

    facts: Mapping[str, Value]
    kind: Kind
    values: dict[str, Value] = field(default_factory=dict)  #: address -> value
    origins: dict[str, str] = field(default_factory=dict)  #: address -> fact
    choices: dict[str, str] = field(default_factory=dict)  #: slot -> ingredient
    notes: dict[str, str] = field(default_factory=dict)  #: address -> what stands behind the value
    fates: dict[str, Fate] = field(default_factory=dict)  #: fact -> what became of it
    differences: list[str] = field(default_factory=list)  #: what makes it another training than theirs

    def get(self, fact: str) -> Value:
        """The value of a fact; None also where nothing was said."""
        return self.facts.get(fact)

    def number(self, fact: str) -> float | None:
        """The value of a fact if it is a number above zero."""
        value = self.get(fact)
        return value if isinstance(value, int | float) and not isinstance(value, bool) and value > 0 else None

    def whole(self, fact: str) -> int | None:
        """The value of a fact if it is a whole number above zero; 1e9 is one, too."""
        value = self.number(fact)
        return int(value) if value is not None and value == int(value) else None

    def put(self, address: str, value: Value, note: str = "") -> None:
        """A value that follows from no fact alone."""
        self.values[address], self.notes[address] = value, note

    def carry(self, fact: str, address: str, value: Value = None) -> None:
        """The fact stands in the recipe as it was said."""
        self.put(address, self.get(fact) if value is None else value)
        self.origins[address] = fact
        self.fates[fact] = Fate("carried", address)

    def change(self, fact: str, address: str, value: Value, why: str) -> None:
        """The fact stands in the recipe as something else."""
        self.put(address, value)
        self.origins[address] = fact
        self.fates[fact] = Fate("changed", address, why)

    def choose(self, fact: str, slot: str, choice: str, why: str = "") -> None:
        """The fact is an ingredient of ours."""
        self.choices[slot] = choice
        self.fates[fact] = Fate("changed" if why else "carried", f"{slot}: {choice}", why)

    def agree(self, fact: str, where: str, why: str = "") -> None:
        """The fact helps to say what stands at `where`."""
        self.fates[fact] = Fate("changed" if why else "carried", where, why)

    def differ(self, how: str) -> None:
        """The recipe trains something else than the file; this is said before all else, once."""
        if how not in self.differences:
            self.differences.append(how)

    def leave(self, fact: str, why: str) -> None:
        """The fact has no place in the recipe."""
        if fact in self.facts:
            self.fates[fact] = Fate("left", "", why)
