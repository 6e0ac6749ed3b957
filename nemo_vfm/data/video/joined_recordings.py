"""Finds where a file was cut off, or recordings were written behind each other into it, by its packets' times.

Each has a clock of its own, so time stamps may go back where the next one begins, and frames would be shown out of
order. Packets come in decoding order; all have the clock of MPEG systems, 90 kHz. In a truncated file, some frames may
be present that are shown after others that are missing: they would make the picture jump, so they are left out.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

_LONGEST_STEP = 1.5  # of the usual distance of two frames


@dataclass(frozen=True, slots=True)
class FramePacket:
    """A packet of a frame that is to be shown."""

    pts: int | None  #: when it is shown, in units of the stream's time base
    dts: int | None  #: when it is decoded
    is_keyframe: bool  #: whether decoding can begin with it
    is_corrupt: bool  #: whether the container says that its bytes are not whole
    place: int = 0  #: the byte of the file where it begins; that of the one before it where nobody says


def without_gap(shown: Sequence[FramePacket]) -> list[FramePacket]:
    """In the order of showing, up to the first frame that is missing; all where time stamps are."""
    whole = [packet for packet in shown if not packet.is_corrupt]
    stamps = sorted(packet.pts for packet in whole if packet.pts is not None)
    last = whole[-1].dts if whole else None
    if len(stamps) < len(whole) or len(stamps) < 2 or last is None:
        return whole
    usual = sorted(after - before for before, after in pairwise(stamps))[(len(stamps) - 1) // 2]
    # What is missing is decoded later than the last, and so shown later.
    end = next(
        (after for before, after in pairwise(stamps)
         if after > last and after - before > _LONGEST_STEP * usual),
        stamps[-1] + 1,
    )  # fmt: skip
    return [packet for packet in whole if packet.pts is not None and packet.pts < end]


LONG_STEP = 45_000  #: half a second


@dataclass(frozen=True, slots=True)
class Recordings:
    """How the packets of a file are decoded that holds several recordings."""

    #: bytes of the file at which another recording, or a piece of one that is left out, begins, ascending
    places: tuple[int, ...] = ()
    #: of what comes before the first of these, and of each, what is added to its time stamps. None leaves its packets
    #: out: they refer to a keyframe that is not there, and would be decoded with one of another recording
    shifts: tuple[int | None, ...] = (0,)

    def number(self, place: int) -> int:
        """Which of them a packet belongs to that begins at this byte."""
        return bisect_right(self.places, place)


def joints_of(shown: Sequence[FramePacket]) -> list[int]:
    """Numbers of the packets with which another recording begins; none where packets have no time stamps.

    There the decoding time goes back, by half a second where it is no keyframe: writers err by a frame or two. Or it
    goes ahead and the counters of the packets jump, too: of a camera that paused they do not.
    """
    if any(packet.pts is None or packet.dts is None for packet in shown):
        return []
    steps = [(number, (after.dts or 0) - (packet.dts or 0)) for number, (packet, after) in _pairs(shown)]
    back = [number for number, step in steps if step < (0 if shown[number].is_keyframe else -LONG_STEP)]
    ahead = [number for number, step in steps if step > LONG_STEP and shown[max(0, number - 2)].is_corrupt]
    return sorted(back + ahead)


def with_bytes_lost(shown: Sequence[FramePacket], joints: Sequence[int]) -> list[FramePacket]:
    """The packets of MPEG-TS, of which those are marked corrupt that lack bytes, or refer to one that does.

    FFmpeg marks a packet if a counter jumps in the next one, since its parser is one packet late. A jump where a
    keyframe or another recording begins is where segments were put together: nothing is lost there.
    """
    marked: set[int] = set()
    corrupt = [number for number, packet in enumerate(shown) if packet.is_corrupt]
    for number in corrupt:
        lost = min(number + 1, len(shown) - 1)
        if lost + 1 in joints or (lost + 1 < len(shown) and shown[lost + 1].is_keyframe):
            continue
        until = (number for number in range(lost + 1, len(shown)) if shown[number].is_keyframe)
        marked.update(range(lost, next(until, len(shown))))
    there = list(shown)
    for number in marked.union(corrupt):
        there[number] = replace(shown[number], is_corrupt=number in marked)
    return there


def on_one_clock(shown: Sequence[FramePacket], joints: Sequence[int]) -> tuple[list[FramePacket], Recordings]:
    """The packets whose frames can be decoded, with time stamps that go on from one recording to the next."""
    first, *later = (shown[begin:end] for begin, end in pairwise([0, *joints, len(shown)]))
    if not later:
        return list(shown), Recordings()
    steps = sorted(step for _, (packet, after) in _pairs(shown) if (step := (after.dts or 0) - (packet.dts or 0)) > 0)
    step = steps[len(steps) // 2] if steps else 1
    there, places, shifts = list(first), list[int](), list[int | None]([0])
    end, last = max(packet.pts or 0 for packet in first) + step, 0
    for part in later:
        key = next((number for number, packet in enumerate(part) if packet.is_keyframe), len(part))
        if key:
            places.append(part[0].place)
            shifts.append(None)
        if key < len(part):
            begin = part[key].pts or 0
            last = max(last, end - begin)
            places.append(part[key].place)
            shifts.append(last)
            # What is shown before the keyframe refers to what came before it (an open group of pictures).
            own = [replace(one, pts=(one.pts or 0) + last) for one in part[key:] if (one.pts or 0) >= begin]
            end = max(packet.pts or 0 for packet in own) + step
            there += own
    return there, Recordings(tuple(places), tuple(shifts))


def _pairs(shown: Sequence[FramePacket]) -> "enumerate[tuple[FramePacket, FramePacket]]":
    return enumerate(pairwise(shown), 1)
