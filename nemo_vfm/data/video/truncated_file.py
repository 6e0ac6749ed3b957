"""Selects the packets of a truncated file whose frames can be shown without a gap.

Packets come in decoding order. In a truncated file, some frames may be present that are shown after others that are
missing: they would make the picture jump.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

_LONGEST_STEP = 1.5  # of the usual distance of two frames


@dataclass(frozen=True, slots=True)
class Shown:
    """A packet of a frame that is to be shown.

    Args:
        pts: when it is shown, in units of the stream's time base.
        dts: when it is decoded.
        is_keyframe: whether decoding can begin with it.
        is_corrupt: whether the container says that its bytes are not whole.
        place: the byte of the file where it begins; that of the one before it where nobody says.
    """

    pts: int | None
    dts: int | None
    is_keyframe: bool
    is_corrupt: bool
    place: int = 0


def without_gap(shown: Sequence[Shown]) -> list[Shown]:
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
