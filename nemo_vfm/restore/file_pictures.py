"""Agrees on one picture box for all shots of a video file, from what each shot says by itself."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from nemo_vfm.restore.letterbox import Box, Picture

_FOR_GOOD_S = 10.0  # a file whose bars stay other ones for so long has changed them
_NEAR_PX, _NEAR = 4, 0.01  # how far two sightings of one box may differ, in pixels and as part of the side


@dataclass(slots=True)
class _Group:
    """Shots that see nearly the same box: its first sighting, what holds all of them, and for how long."""

    first: Box
    box: Box
    seconds: float = 0.0


def agreed_boxes(pictures: Sequence[Picture], seconds: Sequence[float], width: int, height: int) -> list[Box]:
    """The box of each shot, in the shots' order; the whole frame where nothing is to be cut off.

    Shots in the dark see a smaller picture than there is, titles on black see none; so each takes the box that its
    neighbours hold for 10 s, or that most of the file holds. A shot whose picture is larger than that keeps its own:
    picture is never cut off.
    """
    whole = Box(0, 0, width, height)
    groups = _groups(pictures, seconds, width, height)
    lasting = _lasting(groups, seconds)
    first = groups[lasting[0]] if lasting else None
    boxes, current, is_lasting = [], None if first is None else first.box, set(lasting)
    for place, (picture, group) in enumerate(zip(pictures, groups, strict=True)):
        if place in is_lasting and group is not None:
            current = group.box
        seen = picture.lit if group is None else group.box
        own = whole if group is None else group.box
        boxes.append(own if current is None or not _holds(current, seen) else current)
    return boxes


def _groups(pictures: Sequence[Picture], seconds: Sequence[float], width: int, height: int) -> list["_Group | None"]:
    """The group of each shot; None for those that see no box."""
    groups: list[_Group] = []
    found: list[_Group | None] = []
    for picture, duration_s in zip(pictures, seconds, strict=True):
        if picture.box is None:
            found.append(None)
            continue
        box = picture.box
        group = next((one for one in groups if _is_near(one.first, box, width, height)), None)
        if group is None:
            group = _Group(box, box)
            groups.append(group)
        group.box = _around(group.box, box)
        group.seconds += duration_s
        found.append(group)
    return found


def _lasting(groups: Sequence["_Group | None"], seconds: Sequence[float]) -> list[int]:
    """Places of the shots whose box is the file's for a while: 10 s on end, or longer than any other in all."""
    seen = [place for place, group in enumerate(groups) if group is not None]
    most = max((group.seconds for group in groups if group is not None), default=0.0)
    lasting = []
    for _, stretch in groupby(seen, key=lambda place: id(groups[place])):
        places = list(stretch)
        group = groups[places[0]]
        assert group is not None
        if group.seconds == most or sum(seconds[place] for place in places) >= _FOR_GOOD_S:
            lasting += places
    return lasting


def _is_near(one: Box, other: Box, width: int, height: int) -> bool:
    across, down = max(_NEAR_PX, _NEAR * width), max(_NEAR_PX, _NEAR * height)
    return (
        max(abs(one.left - other.left), abs(one.right - other.right)) <= across
        and max(abs(one.top - other.top), abs(one.bottom - other.bottom)) <= down
    )


def _around(one: Box, other: Box) -> Box:
    return Box(
        min(one.left, other.left), min(one.top, other.top), max(one.right, other.right), max(one.bottom, other.bottom)
    )


def _holds(outer: Box, inner: Box | None) -> bool:
    return inner is None or _around(outer, inner) == outer
