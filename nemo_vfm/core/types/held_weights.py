"""Adds up the weights of encoders, codecs and other networks that stand on a device beside the model."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from nemo_vfm.core.errors import DataError, UserError

HELD, FROZEN = "encoders and codecs", "frozen models (weights alone)"


@dataclass(frozen=True, slots=True)
class HeldWeights:
    """The weights of a network."""

    name: str  #: tells it from others; who gives the same name holds the same weights
    num_bytes: int  #: of them on a GPU, where the precision `auto` is bf16


@runtime_checkable
class HoldsWeights(Protocol):
    """An encoder or a codec whose network stands on the device once it is used."""

    def held_weights(self) -> HeldWeights:
        """Its weights, known without reading them.

        Raises:
            UserError, DataError: what says how large they are cannot be read.
        """
        ...


@runtime_checkable
class MakesPartsLate(Protocol):
    """A component whose parts follow from a folder that may be written when the run begins."""

    def late_parts(self) -> Mapping[str, object]:
        """By attribute.

        Raises:
            UserError, DataError: the folder cannot be read yet.
        """
        ...


@dataclass(frozen=True, slots=True)
class ResidentWeights:
    """What stands beside a model on each GPU."""

    weights: Mapping[str, int] = field(default_factory=dict)  #: bytes by name
    #: where something is held whose size cannot be known yet, with the reason.
    unknown: Mapping[str, str] = field(default_factory=dict)

    @property
    def num_bytes(self) -> int:
        """Of all that is known."""
        return sum(self.weights.values())

    @property
    def kinds(self) -> str:
        """What they are, in words."""
        frozen = [" at weights.frozen." in name for name in self.weights]
        return FROZEN if frozen and all(frozen) else f"{HELD}, {FROZEN}" if any(frozen) else HELD

    def notes(self) -> list[str]:
        """A sentence on each whose size is not known."""
        return [f"{at} holds a network on each GPU, too, of unknown size: {why}" for at, why in self.unknown.items()]


def held_below(parts: Mapping[str, object]) -> ResidentWeights:
    """Everything that these parts, by address, hold at whatever depth."""
    from torch import nn  # `check --work` imports this module, and runs on login nodes

    weights, unknown, seen = dict[str, int](), dict[str, str](), set[int]()
    waiting = list(parts.items())
    while waiting:
        at, part = waiting.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        if isinstance(part, nn.Module):
            weights[f"{type(part).__name__} at {at}"] = sum(parameter.nbytes for parameter in part.parameters())
            continue
        try:
            if isinstance(part, HoldsWeights):
                found = part.held_weights()
                weights[found.name] = found.num_bytes
            else:
                waiting += [(f"{at}.{name}", below) for name, below in _below(part)]
        except (UserError, DataError, OSError) as error:  # a folder that is given later, a package that is not here
            unknown[at] = str(error)
    return ResidentWeights(weights, unknown)


def _below(part: object) -> Iterator[tuple[str, object]]:
    """What a component keeps: its attributes, or the entries of a mapping or list."""
    if isinstance(part, type | Path | str | bytes) or callable(part):
        return
    if isinstance(part, MakesPartsLate):
        yield from part.late_parts().items()
    elif isinstance(part, Mapping):
        yield from ((str(key), below) for key, below in part.items())
    elif isinstance(part, list | tuple):
        yield from ((str(place), below) for place, below in enumerate(part))
    else:
        names = [*getattr(part, "__dict__", ()), *getattr(type(part), "__slots__", ())]
        yield from ((name, getattr(part, name)) for name in names if hasattr(part, name))
